"""The run itself, on the gateway's own description: it asks for every route, and all that it gets is as described."""

from __future__ import annotations

import pytest

from api.gateway.openapi import describe
from api.gateway.operations import OPERATIONS
from tests.gateway.conformance.run import judge, record
from tests.gateway.conformance.schema import ApiSchema


# Some hundred requests: a minute and a half on a machine that is busy with other tests.
@pytest.mark.timeout(300)
async def test_every_route_answers_as_it_is_described() -> None:
    report = judge(ApiSchema(describe("turnledger gateway", "test")), await record())
    assert report.found == {}
    answered = {(kind.method, kind.path) for kind in report.checked if kind.status == 200}
    assert answered == {(operation.method, operation.path) for operation in OPERATIONS}
