"""Who calls, and what they may do: tokens of the auth file mapped to namespace, principals, routes and roles.

The scope of every request comes from here, never from the body alone. A request may name a principal and a route, but
only those that its token allows; the namespace comes from the token. Roles:

- ``router``: commit, start, abandon, look up, history, delete, conversations;
- ``reader``: look up and history;
- ``auditor``: replay. It sees the token's principals on every route, as the log does not say an event's route;
- ``admin``: erase a principal (on every route), and the policy, which is the whole ledger's.

The file holds SHA-256 digests of tokens, never tokens::

    tokens:
      - sha256: 5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8
        namespace: production
        principals: "*"          # or a list
        routes: [default]        # or "*"
        roles: [router, reader]

Tokens are random words of 128 bits or more, so a fast digest is enough: there is no dictionary to try.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from api.yaml_file import Value, read_yaml
from ledger.errors import InvalidInput, NotAuthenticated, NotPermitted
from ledger.turn import SCOPE_BYTES_MAX, Scope, checked_text

LOCAL_NAMESPACE, LOCAL_PRINCIPAL, LOCAL_ROUTE = "default", "local", "default"
"""The one scope of a service without an auth file."""


class Role(StrEnum):
    """What a token is for."""

    ROUTER = "router"
    READER = "reader"
    AUDITOR = "auditor"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls: everything that a request is allowed to be."""

    namespace: str
    principals: tuple[str, ...] | None
    """None: any."""
    routes: tuple[str, ...] | None
    """None: any."""
    roles: frozenset[Role]

    def require(self, *roles: Role) -> None:
        """Raise ``NotPermitted`` unless the caller has one of ``roles``."""
        if self.roles.isdisjoint(roles):
            raise NotPermitted(f"this call needs the role {' or '.join(roles)}")

    def scope(self, principal: str | None, route: str | None) -> Scope:
        """Return the scope of a request that names these, or the only ones allowed where it names none.

        Raises ``InvalidInput`` when one must be named, ``NotPermitted`` when it is another's.
        """
        return Scope(
            namespace=self.namespace,
            principal=_chosen("principal", principal, self.principals),
            route=_chosen("route", route, self.routes),
        )

    def principal_scope(self, principal: str | None) -> Scope:
        """Return the scope of what concerns a principal on every route; the route in it means nothing.

        Raises like ``scope``.
        """
        chosen = _chosen("principal", principal, self.principals)
        return Scope(namespace=self.namespace, principal=chosen, route=LOCAL_ROUTE)

    def principal_scopes(self, principal: str | None) -> list[Scope] | None:
        """Return one such scope for each principal whose events a replay may show; None: the whole namespace."""
        if principal is not None:
            return [self.principal_scope(principal)]
        return None if self.principals is None else [self.principal_scope(name) for name in self.principals]


def _chosen(field: str, named: str | None, allowed: tuple[str, ...] | None) -> str:
    if named is None:
        if allowed is None or len(allowed) != 1:
            raise InvalidInput(field, "is required: the token allows more than one")
        return allowed[0]
    checked_text(field, named, SCOPE_BYTES_MAX)
    if allowed is not None and named not in allowed:
        raise NotPermitted(f"the token does not allow this {field}")
    return named


LOCAL_CALLER = Caller(
    namespace=LOCAL_NAMESPACE, principals=(LOCAL_PRINCIPAL,), routes=(LOCAL_ROUTE,), roles=frozenset(Role)
)


class Access:
    """Answers who a request's token belongs to."""

    def __init__(self, callers: Mapping[bytes, Caller] | None) -> None:
        """``callers`` by SHA-256 digest of their token; None: everybody is the one local caller."""
        self._callers = None if callers is None else tuple(callers.items())

    @classmethod
    def local(cls) -> Access:
        """Return the access of a service on loopback without an auth file: one principal, all roles."""
        return cls(None)

    @classmethod
    def from_file(cls, path: Path) -> Access:
        """Read an auth file. Raises ``InvalidInput`` naming file, line and field."""
        return cls(_callers_of(path))

    @property
    def is_local(self) -> bool:
        """Whether there is no auth file."""
        return self._callers is None

    def caller(self, authorization: str | None) -> Caller:
        """Return who sent this ``Authorization`` header. Raises ``NotAuthenticated``.

        Every entry is compared, in constant time, so that the time taken tells nothing about the file.
        """
        if self._callers is None:
            return LOCAL_CALLER
        scheme, _, token = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise NotAuthenticated("no bearer token was sent")
        digest = hashlib.sha256(token.strip().encode("latin-1", "replace")).digest()
        found: Caller | None = None
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise NotAuthenticated("the token is not known")
        return found


def _callers_of(path: Path) -> dict[bytes, Caller]:
    callers: dict[bytes, Caller] = {}
    for token in read_yaml(path, "auth_file").fields({"tokens"})["tokens"].entries():
        fields = token.fields({"sha256", "namespace", "principals", "routes", "roles"})
        digest = fields["sha256"].sha256()
        if digest in callers:
            fields["sha256"].refuse("is the digest of an earlier token")
        callers[digest] = Caller(
            namespace=fields["namespace"].text(),
            principals=_names(fields["principals"]),
            routes=_names(fields["routes"]),
            roles=frozenset(Role(entry.word(tuple(Role))) for entry in fields["roles"].entries()),
        )
    return callers


def _names(value: Value) -> tuple[str, ...] | None:
    word = value.scalar()
    if word is None:
        return tuple(entry.text() for entry in value.entries())
    if word != "*":
        value.refuse('must be a list of texts, or "*" for any')
    return None
