"""Frames on their way to one client."""

from __future__ import annotations

import asyncio

from api.gateway.delivery import FRAMES_MAX, Delivery


async def test_frames_that_wait_leave_as_one_piece_and_in_their_order() -> None:
    delivery = Delivery()
    for frame in (b"a", b"b"):
        await delivery.send(frame)
    assert await delivery.next() == b"ab"
    await delivery.send(b"c")
    await delivery.end()
    assert [await delivery.next(), await delivery.next(), await delivery.next()] == [b"c", None, None]


async def test_more_frames_than_may_wait_arrive_once_there_is_room() -> None:
    delivery = Delivery()
    frames = [b"%d," % number for number in range(3 * FRAMES_MAX)]

    async def send() -> None:
        for frame in frames:
            await delivery.send(frame)
        await delivery.end()

    sending = asyncio.create_task(send())
    received = b""
    while (piece := await delivery.next()) is not None:
        received += piece
    await sending
    assert received == b"".join(frames)


async def test_a_stream_without_frames_ends() -> None:
    delivery = Delivery()
    await delivery.end()
    assert await delivery.next() is None


async def test_frames_for_a_client_that_left_go_nowhere() -> None:
    delivery = Delivery()
    delivery.leave()
    for _ in range(2 * FRAMES_MAX):
        await delivery.send(b"frame")
    await delivery.end()
