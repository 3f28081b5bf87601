"""The description of the service: every route with examples that are valid, and no input of its kind makes it fail."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from api.app import create_app
from api.auth import Access
from api.openapi import describe
from api.operations import OPERATIONS
from api.requests import NDJSON
from ledger.composition import open_embedded

DESCRIPTION = describe("turnledger", "test")
EXAMPLES_MAX = 6
"""Per operation; with the schema's own corner cases they stay below half a minute."""


class _Server(threading.Thread):
    """The service on loopback, with a loop of its own: schemathesis asks from the test's thread."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self._directory = directory
        self._is_open = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        async with await open_embedded(self._directory) as ledger:
            app = create_app(ledger, Access.local())
            server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
            serving = asyncio.create_task(server.serve([self._listener]))
            self._is_open.set()
            await self._stopping.wait()
            server.should_exit = True
            await serving

    def wait(self) -> None:
        assert self._is_open.wait(30.0)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stopping.set)
        self.join(30.0)
        self._listener.close()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = _Server(tmp_path_factory.mktemp("service"))
    server.start()
    server.wait()
    yield server.url
    server.stop()


@schemathesis.serializer(NDJSON)
def lines(_: schemathesis.SerializationContext, value: Any) -> bytes:
    """Send what the description calls a text as it is, and anything else as one line."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


schema = schemathesis.openapi.from_dict(DESCRIPTION)


@schema.parametrize()
@settings(
    max_examples=EXAMPLES_MAX,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_input_makes_the_service_fail(case: schemathesis.Case, url: str) -> None:
    response = case.call(base_url=url)
    case.validate_response(response, checks=[not_a_server_error, status_code_conformance, response_schema_conformance])


def test_every_served_route_is_described() -> None:
    described = {(method.upper(), path) for path, methods in DESCRIPTION["paths"].items() for method in methods}
    assert described == {(operation.method, operation.path) for operation in OPERATIONS}
    assert all(re.fullmatch(r"[^{}]*", path) for path in DESCRIPTION["paths"]), "IDs never travel in a path"


def _examples() -> Iterator[tuple[str, dict[str, Any], Any]]:
    for path, methods in DESCRIPTION["paths"].items():
        for method, operation in methods.items():
            name = f"{method} {path}"
            for parameter in operation["parameters"]:
                if "example" in parameter:
                    yield name, parameter["schema"], parameter["example"]
            bodies = [operation["requestBody"], *operation["responses"].values()] if "requestBody" in operation else []
            for body in bodies or operation["responses"].values():
                for content in body["content"].values():
                    if "example" in content:
                        yield name, content["schema"], content["example"]


@pytest.mark.parametrize(("name", "declared", "example"), list(_examples()))
def test_example_is_valid(name: str, declared: dict[str, Any], example: Any) -> None:
    jsonschema.validate(example, {**declared, "components": DESCRIPTION["components"]})


def test_every_route_has_an_example_of_its_body_and_of_its_answer() -> None:
    for path, methods in DESCRIPTION["paths"].items():
        for operation in methods.values():
            if "requestBody" in operation:
                assert all("example" in content for content in operation["requestBody"]["content"].values()), path
            succeeded = operation["responses"]["200"]
            assert all("example" in content for content in succeeded["content"].values()), path
