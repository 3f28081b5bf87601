"""Which ledger a command talks to: a running service, or an embedded ledger that nobody serves.

Both are asked through the service's own HTTP interface, the embedded one within this process, so there is one code path
and one behaviour.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import httpx
import typer

if TYPE_CHECKING:
    from ledger.ledger import Ledger

from api.auth import LOCAL_NAMESPACE, LOCAL_PRINCIPAL, LOCAL_ROUTE, Access, Caller, Role
from ledger.adapters.http import LedgerClient
from ledger.errors import InvalidInput, StateDirectoryLocked, Unavailable
from ledger.settings import default_directory
from ledger.turn import Scope, Selector, SelectorKind

P = ParamSpec("P")

PANEL = "Which ledger"


class ServedElsewhere(StateDirectoryLocked):
    """The embedded ledger is open in another process, which alone can answer for it."""

    advice = "talk to the service that has it open with --url (or TURNLEDGER_URL), or stop it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The options that every command has which asks a ledger."""

    url: Annotated[
        str | None, typer.Option(envvar="TURNLEDGER_URL", help="A running service.", rich_help_panel=PANEL)
    ] = None
    token: Annotated[
        str | None, typer.Option(envvar="TURNLEDGER_TOKEN", help="Bearer token for it.", rich_help_panel=PANEL)
    ] = None
    directory: Annotated[
        Path | None,
        typer.Option(
            envvar="TURNLEDGER_DIRECTORY",
            help="Without --url: an embedded ledger that nobody serves. Default: turnledger in XDG_DATA_HOME.",
            rich_help_panel=PANEL,
        ),
    ] = None
    namespace: Annotated[
        str | None,
        typer.Option(
            envvar="TURNLEDGER_NAMESPACE",
            help=f"Of an embedded ledger, default '{LOCAL_NAMESPACE}'; of a service the token decides.",
            rich_help_panel=PANEL,
        ),
    ] = None
    principal: Annotated[
        str | None,
        typer.Option(
            envvar="TURNLEDGER_PRINCIPAL",
            help=f"Whose IDs these are. Default: '{LOCAL_PRINCIPAL}'.",
            rich_help_panel=PANEL,
        ),
    ] = None
    route: Annotated[
        str | None,
        typer.Option(envvar="TURNLEDGER_ROUTE", help=f"State domain. Default: '{LOCAL_ROUTE}'.", rich_help_panel=PANEL),
    ] = None

    def scope(self, principal: str | None = None, route: str | None = None) -> Scope:
        """Return the scope that the options name; ``principal`` and ``route`` of a single turn come before them."""
        return Scope(
            namespace=self.namespace or LOCAL_NAMESPACE,
            principal=principal or self.principal or LOCAL_PRINCIPAL,
            route=route or self.route or LOCAL_ROUTE,
        )

    def selector(self, kind: SelectorKind, opaque_id: str) -> Selector:
        """Return an opaque ID in this scope. Raises ``InvalidInput`` or ``TooLarge``."""
        return Selector(scope=self.scope(), kind=kind, id=opaque_id)

    @asynccontextmanager
    async def client(self, *, creates: bool = False) -> AsyncIterator[LedgerClient]:
        """Open the ledger for one command; ``creates`` an embedded one that does not exist yet.

        Raises ``ServedElsewhere``, ``InvalidInput``, and what opening a ledger raises.
        """
        if self.url is not None:
            if self.namespace is not None:
                raise InvalidInput(
                    "namespace",
                    "is decided by the token when a service is asked; leave out --namespace and TURNLEDGER_NAMESPACE",
                )
            async with service_client(self.url, self.token) as client:
                yield client
            return
        directory = self.directory or default_directory()
        if not (creates or (directory / "log").is_dir()):
            raise InvalidInput(
                "directory", f"there is no ledger in {directory}; publish to it or name a service (--url)"
            )
        # Here, so that a command that asks a service need not load RocksDB and Kafka clients.
        from ledger.composition import open_embedded

        try:
            ledger = await open_embedded(directory)
        except StateDirectoryLocked:
            raise ServedElsewhere(f"the ledger in {directory} is open in another process") from None
        async with ledger, in_process(ledger, self.namespace or LOCAL_NAMESPACE) as client:
            yield client


@asynccontextmanager
async def service_client(url: str, token: str | None = None) -> AsyncIterator[LedgerClient]:
    """Ask a running service. Raises ``InvalidInput`` for what is no URL, ``Unavailable`` naming the URL."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInput("url", f"is not a URL: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInput("url", "must begin with http:// or https:// and name a host")
    async with LedgerClient(url, token=token) as client:
        try:
            yield client
        except Unavailable as error:
            if error.reason != "service":
                raise
            message = str(error).removeprefix("unavailable (service): ")
            raise Unavailable("service", f"{message}: {url}") from error


@asynccontextmanager
async def in_process(ledger: Ledger, namespace: str) -> AsyncIterator[LedgerClient]:
    """Ask a ledger of this process, with every role, for any principal and route of a namespace."""
    # Here, so that a command that asks a service need not load one.
    from api.app import create_app

    token = secrets.token_hex(16)
    anyone = Caller(namespace=namespace, principals=None, routes=None, roles=frozenset(Role))
    access = Access({hashlib.sha256(token.encode()).digest(): anyone})
    transport = httpx.ASGITransport(app=create_app(ledger, access))
    async with LedgerClient("http://embedded", token=token, transport=transport) as client:
        yield client


def connected(command: Callable[Concatenate[Connection, P], Awaitable[None]]) -> Callable[..., None]:
    """Make a command of a coroutine function: run it, and give it the options of ``Connection`` as one argument."""
    signature = inspect.signature(command, eval_str=True)
    options = inspect.signature(Connection, eval_str=True).parameters.values()
    names = {field.name for field in fields(Connection)}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        connection = Connection(**{name: values.pop(name) for name in names})
        asyncio.run(_run(connection, values))

    async def _run(connection: Connection, values: dict[str, Any]) -> None:
        await command(connection, **values)  # type: ignore[call-arg]  # typer fills exactly the signature below

    own = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in signature.parameters.items()
        if name != "connection"
    ]
    run.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    run.__annotations__ = {}
    return run
