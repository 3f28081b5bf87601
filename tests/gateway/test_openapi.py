"""The gateway's description: every route with examples that are valid, and no input of its kind makes it fail."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.gateway.config import GatewayConfig
from api.gateway.openapi import PATH, PREFIX, describe
from api.gateway.operations import OPERATIONS
from cli.loopback.server import running_loopback
from ledger.composition import open_embedded
from tests.gateway.world import base_config, config_from, gateway_over

DESCRIPTION = describe("turnledger gateway", "test")
EXAMPLES_MAX = 6
"""Per operation; with the schema's own corner cases they stay below half a minute."""
WITH_ITEMS = ("POST /responses", "POST /conversations", "POST /conversations/{conversation_id}/items")
"""Operations whose schema has thousands of corner cases: the shapes of items, which have their own tests."""
CONFIG = schemathesis.Config.from_dict(
    {"operations": [{"include-name": name, "phases": {"coverage": {"enabled": False}}} for name in WITH_ITEMS]}
)
NAMES = ("p1", "p2", "c")


class _Server(threading.Thread):
    """A gateway on loopback with its targets, in a loop of its own: schemathesis asks from the test's thread."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._is_open = threading.Event()
        self.url = ""

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with AsyncExitStack() as stack:
            loopbacks = [await stack.enter_async_context(running_loopback(name)) for name in NAMES]
            ports = {loopback.name: int(loopback.url.rpartition(":")[2]) for loopback in loopbacks}
            config = base_config(ports, prefers="p1", principals=[])
            del config["keys"]
            read = GatewayConfig.from_file(config_from(config, self._directory, "gateway"), {})
            ledger = await stack.enter_async_context(await open_embedded(self._directory / "state"))
            self.url = (await stack.enter_async_context(gateway_over(ledger, read))).url
            self._is_open.set()
            await self._stopping.wait()

    def wait(self) -> None:
        assert self._is_open.wait(30.0)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self.join(30.0)


class Known:
    """What there is at the gateway; made anew after a request that may have changed or deleted it."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._models = itertools.cycle(["auto", "chat"])
        self._turn = itertools.cycle([True, False])
        self._named: dict[str, str] = {}

    def parameters(self, asked: Mapping[str, Any], *, may_change: bool) -> dict[str, Any]:
        """Return path parameters that name something, every other time; else those that were asked with."""
        if not asked or not next(self._turn):
            return dict(asked)
        named = self._named or self.made()
        self._named = {} if may_change else named
        return {name: named[name] for name in asked}

    def made(self) -> dict[str, str]:
        """Return the IDs of a new conversation with an item, and of a new response."""
        conversation = self._http.post("/conversations", json={"items": [{"role": "user", "content": "alpha"}]}).json()
        request = {"model": next(self._models), "input": "alpha"}
        response = self._http.post("/responses", json=request).json()
        items = self._http.get(f"/conversations/{conversation['id']}/items").json()
        return {
            "conversation_id": conversation["id"],
            "response_id": response["id"],
            "item_id": items["first_id"],
            "model": "chat",
        }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = _Server(tmp_path_factory.mktemp("gateway"))
    server.start()
    server.wait()
    yield f"{server.url}{PREFIX}"
    server.stop()


@pytest.fixture(scope="module")
def known(url: str) -> Iterator[Known]:
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        yield Known(http)


def _answerable() -> dict[str, Any]:
    """Return the description with the models that there are: a request for another one comes no further."""
    described = copy.deepcopy(DESCRIPTION)
    described["components"]["schemas"]["CreateResponse"]["properties"]["model"] = {"enum": ["auto", "chat", "unknown"]}
    return described


schema = schemathesis.openapi.from_dict(_answerable(), config=CONFIG)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES_MAX,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_input_makes_the_gateway_fail(case: schemathesis.Case, url: str, known: Known) -> None:
    case.path_parameters = known.parameters(case.path_parameters, may_change=case.method != "GET")
    response = case.call(base_url=url)
    case.validate_response(
        response,
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )


@pytest.mark.parametrize("model", ["auto", "chat"])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("background", "yes"),
        ("include", "reasoning"),
        ("instructions", ["Be brief."]),
        ("max_output_tokens", 15),
        ("parallel_tool_calls", 1),
        ("reasoning", "low"),
        ("temperature", 2.1),
        ("text", "json"),
        ("tool_choice", 1),
        ("tools", {}),
        ("tools[0]", ["web_search"]),
        ("top_logprobs", 1.5),
        ("top_p", -0.1),
        ("truncation", "some"),
    ],
)
def test_known_parameter_of_a_wrong_type_is_refused_for_every_target(
    url: str, model: str, field: str, value: Any
) -> None:
    request = {"model": model, "input": "alpha", field.partition("[")[0]: value}
    answer = httpx.post(f"{url}/responses", json=request, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("after", ["-1", "1.5", "x", "1" * 16])
def test_starting_after_is_the_number_of_an_event(url: str, known: Known, after: str) -> None:
    query = {"stream": "true", "starting_after": after}
    answer = httpx.get(f"{url}/responses/{known.made()['response_id']}", params=query, trust_env=False)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "starting_after")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/responses/compact", 404, "not_supported"),
        ("POST", "/responses/input_tokens", 404, "not_supported"),
        ("POST", "/chat/completions", 404, "not_supported"),
        ("GET", "/responses", 405, "method_not_allowed"),
        ("PUT", "/conversations/conv_1", 405, "method_not_allowed"),
    ],
)
def test_what_the_gateway_does_not_have_is_answered_as_not_supported(
    url: str, method: str, path: str, status: int, code: str
) -> None:
    answer = httpx.request(method, f"{url}{path}", json={}, trust_env=False)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["reason"]) == (status, code, "not_supported")


def test_every_served_route_is_described() -> None:
    described = {(method.upper(), path) for path, methods in DESCRIPTION["paths"].items() for method in methods}
    assert described == {(operation.method, operation.path) for operation in OPERATIONS}


def test_description_is_served_without_a_key_as_it_is_here(url: str) -> None:
    served = httpx.get(f"{url.removesuffix(PREFIX)}{PATH}", trust_env=False).json()
    assert served["paths"] == json.loads(json.dumps(DESCRIPTION["paths"]))


def _examples() -> Iterator[tuple[str, dict[str, Any], Any]]:
    for path, methods in DESCRIPTION["paths"].items():
        for method, operation in methods.items():
            bodies = [operation["requestBody"]] if "requestBody" in operation else []
            for body in [*bodies, operation["responses"]["200"]]:
                for media_type, content in body["content"].items():
                    yield f"{method} {path} {media_type}", content["schema"], content["example"]


@pytest.mark.parametrize(("name", "declared", "example"), list(_examples()))
def test_example_is_valid(name: str, declared: dict[str, Any], example: Any) -> None:
    jsonschema.validate(example, {**declared, "components": DESCRIPTION["components"]})
