"""Tokens: who may do what, as whom, and what a wrong auth file says."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

import httpx
import pytest

from api.auth import Access, Role
from ledger.errors import InvalidInput, NotAuthenticated
from tests.api.conftest import TOKENS, AsCaller
from tests.api.test_turns import native

LOOKUP = {"kind": "response", "id": "r1"}
ROUTER_CALLS = [
    ("POST", "turns"),
    ("POST", "turns/batch"),
    ("POST", "starts"),
    ("POST", "abandonments"),
    ("POST", "conversations"),
    ("PATCH", "conversations"),
    ("DELETE", "conversations"),
    ("POST", "conversations/items"),
    ("DELETE", "conversations/items"),
    ("DELETE", "responses"),
]
READS = [("GET", "lookup"), ("POST", "lookups"), ("GET", "history"), ("GET", "conversations")]
CALLS: list[tuple[str, str, set[Role]]] = [
    *((method, path, {Role.ROUTER}) for method, path in ROUTER_CALLS),
    *((method, path, {Role.ROUTER, Role.READER}) for method, path in READS),
    ("GET", "replay", {Role.AUDITOR}),
    ("POST", "erasures", {Role.ADMIN}),
    ("GET", "policy", set(Role)),
    ("PATCH", "policy", {Role.ADMIN}),
    ("PUT", "policy", {Role.ADMIN}),
]


@pytest.mark.parametrize(("method", "path", "roles"), CALLS)
async def test_call_is_for_its_roles_only(as_caller: AsCaller, method: str, path: str, roles: set[Role]) -> None:
    for token in ("router-a", "reader", "auditor", "admin"):
        async with as_caller(token) as http:
            # Nothing is sent, so a caller who may call is told what is missing.
            answer = await http.request(method, f"/ledger/v1/{path}")
        own = {Role(role) for role in TOKENS[token]["roles"]}  # type: ignore[attr-defined]  # lists, as in YAML
        assert (answer.status_code == 403) is own.isdisjoint(roles), (token, answer.text)


@pytest.mark.parametrize("authorization", [None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic cm91dGVy", "router-a"])
async def test_call_without_a_known_token_answers_401(as_caller: AsCaller, authorization: str | None) -> None:
    async with as_caller("router-a") as http:
        del http.headers["authorization"]
        headers = {} if authorization is None else {"authorization": authorization}
        answer = await http.get("/ledger/v1/lookup", params=LOOKUP, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.get("/health/live")).status_code == 200


@pytest.mark.parametrize(
    ("token", "given", "status"),
    [
        ("alice", {"route": "default"}, 200),
        ("alice", {"route": "default", "principal": "alice"}, 200),
        ("alice", {"route": "default", "principal": "bob"}, 403),
        ("alice", {"route": "third"}, 403),
        ("alice", {}, 400),
        ("router-a", {"principal": "anybody"}, 200),
        ("router-a", {"principal": "anybody", "route": "other"}, 403),
        ("router-a", {}, 400),
    ],
)
async def test_principal_and_route_are_those_of_the_token(
    as_caller: AsCaller, token: str, given: dict[str, str], status: int
) -> None:
    async with as_caller(token) as http:
        answer = await http.post("/ledger/v1/turns", json=native("r1", **given))
        assert answer.status_code == status
        if status == 200:
            assert (await http.get("/ledger/v1/lookup", params={**LOOKUP, **given})).status_code == 200


async def test_service_without_auth_file_has_one_scope(http: httpx.AsyncClient) -> None:
    given = {"principal": "local", "route": "default"}
    assert (await http.post("/ledger/v1/turns", json=native("r1"))).status_code == 200
    assert (await http.get("/ledger/v1/lookup", params={**LOOKUP, **given})).status_code == 200
    for name in given:
        assert (await http.get("/ledger/v1/lookup", params={**LOOKUP, name: "x"})).status_code == 403


def test_tokens_are_compared_in_constant_time_and_to_the_last(auth_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []
    compare = hmac.compare_digest

    def seen(known: bytes, digest: bytes) -> bool:
        compared.append(known)
        return compare(known, digest)

    monkeypatch.setattr(hmac, "compare_digest", seen)
    access = Access.from_file(auth_file)
    assert access.caller("Bearer router-a").namespace == "a"
    assert len(compared) == len(TOKENS)
    with pytest.raises(NotAuthenticated):
        access.caller("Bearer router-c")
    assert len(compared) == 2 * len(TOKENS)


GOOD = f"""\
tokens:
  - sha256: {hashlib.sha256(b"x").hexdigest()}
    namespace: production
    principals: "*"
    routes: [default]
    roles: [router]
"""


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        (GOOD, "", 1, "tokens: is missing"),
        (GOOD, "- a\n", 1, "file: must have the fields tokens"),
        (GOOD, "tokens: []\n", 1, "tokens: must be a list with at least one entry"),
        (GOOD, "tokens: [\n", 2, "is not YAML"),
        ("  - sha256", "  - plain: secret\n    sha256", 2, "tokens[0].plain: is not known"),
        ("namespace: production", "namespace: 7", 3, "tokens[0].namespace: must be a text"),
        ("namespace: production", 'namespace: ""', 3, "tokens[0].namespace: must not be empty"),
        ("    namespace: production\n", "", 2, "tokens[0].namespace: is missing"),
        ("sha256: ", "sha256: A", 2, "tokens[0].sha256: must be 64 lower-case hexadecimal digits"),
        ('"*"', "all", 4, 'tokens[0].principals: must be a list of texts, or "*" for any'),
        ('"*"', "[]", 4, "tokens[0].principals: must be a list with at least one entry"),
        ("[default]", "[default, 7]", 5, "tokens[0].routes[1]: must be a text"),
        ("[router]", "[router, root]", 6, "tokens[0].roles[1]: must be one of router, reader, auditor, admin"),
        ("roles:", "routes: [x]\n    roles:", 6, "tokens[0].routes: is given twice"),
        ("tokens:\n", GOOD, 7, "tokens[1].sha256: is the digest of an earlier token"),
    ],
)
def test_wrong_auth_file_is_refused_by_line_and_field(tmp_path: Path, old: str, new: str, line: int, says: str) -> None:
    path = tmp_path / "auth.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(InvalidInput) as refused:
        Access.from_file(path)
    assert f"{path}:{line}: {says}" in str(refused.value)


def test_auth_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"none\.yaml cannot be read"):
        Access.from_file(tmp_path / "none.yaml")
