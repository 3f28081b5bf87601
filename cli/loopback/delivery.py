"""How an answer reaches its client: the directives of its script about time, status and the connection."""

from __future__ import annotations

from collections.abc import Iterable

from cli.loopback.exchange import Exchange
from cli.loopback.script import Script
from ledger.refusal import Refusal

Frame = tuple[bytes, bool]
"""An event as bytes, and whether it is a delta."""

_codes = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


async def begin(exchange: Exchange, script: Script, *, is_stream: bool) -> None:
    """Do what the script says about the time before the first byte. Raises ``Refusal`` for its status."""
    if script.delay_ms:
        await exchange.wait(script.delay_ms / 1000)
    if script.hangs:
        await exchange.wait(None)
    if script.status is not None:
        raise refusal_of_status(script.status)
    if script.cut is not None and not is_stream:
        await exchange.drop()


async def deliver(exchange: Exchange, frames: Iterable[Frame], script: Script) -> None:
    """Stream ``frames``; they are made one at a time, so that a turn that was cut is not completed."""
    await exchange.begin_stream()
    sent = 0
    for frame, is_delta in frames:
        if is_delta:
            if sent == script.cut:
                await exchange.drop()
            if sent and script.pause_ms:
                await exchange.wait(script.pause_ms / 1000)
            sent += 1
        await exchange.send(frame)
        if is_delta and sent == script.cut:
            await exchange.drop()
    await exchange.end_stream()


def refusal_of_status(status: int) -> Refusal:
    """Return an error as providers spell it."""
    kind = "rate_limit_error" if status == 429 else None
    return Refusal(status, f"The loopback upstream was told to answer {status}.", code=_codes.get(status), type=kind)
