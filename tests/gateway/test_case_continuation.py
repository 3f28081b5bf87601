"""Case A1: a follow-up on another replica goes to the owner, whatever the policy would choose."""

from __future__ import annotations

import pytest

from tests.gateway.asking import ask
from tests.gateway.world import World

streamed_or_not = pytest.mark.parametrize("streamed", [False, True], ids=["buffered", "streamed"])


@streamed_or_not
async def test_follow_up_on_the_other_replica_goes_to_the_owner(world: World, streamed: bool) -> None:
    first = await ask(world.client(1), streamed=streamed, model="auto", input="alpha")
    assert first.text == "p1 heard: alpha"
    second = await ask(world.client(2), streamed=streamed, model="auto", input="beta", previous_response_id=first.id)
    assert second.text == "p1 heard: alpha | beta"
    assert world.called() == {"p1": 2, "p2": 0, "c": 0}
