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
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

import yaml

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
        return cls(_AuthFile(path).callers())

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


class _AuthFile:
    """An auth file as YAML nodes, which know their lines."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def callers(self) -> dict[bytes, Caller]:
        try:
            root = yaml.compose(self._path.read_text(), Loader=yaml.SafeLoader)
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput("auth_file", f"{self._path} cannot be read: {error}") from None
        except yaml.MarkedYAMLError as error:
            line = 1 if error.problem_mark is None else error.problem_mark.line + 1
            raise InvalidInput("auth_file", f"{self._path}:{line}: is not YAML: {error.problem}") from None
        except yaml.YAMLError as error:
            raise InvalidInput("auth_file", f"{self._path}:1: is not YAML: {error}") from None
        if root is None:
            raise InvalidInput("auth_file", f"{self._path}:1: tokens: is missing")
        tokens = self._fields(root, "", {"tokens"})["tokens"]
        callers: dict[bytes, Caller] = {}
        for index, node in enumerate(self._entries(tokens, "tokens")):
            at = f"tokens[{index}]"
            fields = self._fields(node, at, {"sha256", "namespace", "principals", "routes", "roles"})
            digest = self._text(fields["sha256"], f"{at}.sha256")
            if not re.fullmatch("[0-9a-f]{64}", digest):
                self._refuse(fields["sha256"], f"{at}.sha256", "must be 64 lower-case hexadecimal digits")
            if bytes.fromhex(digest) in callers:
                self._refuse(fields["sha256"], f"{at}.sha256", "is the digest of an earlier token")
            callers[bytes.fromhex(digest)] = Caller(
                namespace=self._text(fields["namespace"], f"{at}.namespace"),
                principals=self._names(fields["principals"], f"{at}.principals"),
                routes=self._names(fields["routes"], f"{at}.routes"),
                roles=self._roles(fields["roles"], f"{at}.roles"),
            )
        return callers

    def _refuse(self, node: yaml.Node, field: str, reason: str) -> NoReturn:
        raise InvalidInput("auth_file", f"{self._path}:{node.start_mark.line + 1}: {field}: {reason}")

    def _fields(self, node: yaml.Node, at: str, names: set[str]) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self._refuse(node, at or "file", f"must have the fields {', '.join(sorted(names))}")
        fields: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "a field"
            field = f"{at}.{name}" if at else name
            if name not in names:
                self._refuse(key, field, f"is not known; there are {', '.join(sorted(names))}")
            if name in fields:
                self._refuse(key, field, "is given twice")
            fields[name] = value
        for name in sorted(names - fields.keys()):
            self._refuse(node, f"{at}.{name}" if at else name, "is missing")
        return fields

    def _entries(self, node: yaml.Node, field: str) -> Sequence[yaml.Node]:
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._refuse(node, field, "must be a list with at least one entry")
        entries: list[yaml.Node] = node.value
        return entries

    def _text(self, node: yaml.Node, field: str) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag != "tag:yaml.org,2002:str":
            self._refuse(node, field, "must be a text; quote it if it looks like a number, a date or yes and no")
        value: str = node.value
        try:
            checked_text(field, value, SCOPE_BYTES_MAX)
        except InvalidInput as error:
            self._refuse(node, field, error.reason)
        return value

    def _names(self, node: yaml.Node, field: str) -> tuple[str, ...] | None:
        if isinstance(node, yaml.ScalarNode):
            if node.value != "*":
                self._refuse(node, field, 'must be a list of texts, or "*" for any')
            return None
        entries = self._entries(node, field)
        return tuple(self._text(entry, f"{field}[{index}]") for index, entry in enumerate(entries))

    def _roles(self, node: yaml.Node, field: str) -> frozenset[Role]:
        roles = set()
        for index, entry in enumerate(self._entries(node, field)):
            word = self._text(entry, f"{field}[{index}]")
            if word not in set(Role):
                self._refuse(entry, f"{field}[{index}]", f"must be one of {', '.join(Role)}")
            roles.add(Role(word))
        return frozenset(roles)
