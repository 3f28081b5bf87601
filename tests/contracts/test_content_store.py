"""Contract of the port ``ContentStore``, on every adapter."""

from collections.abc import Awaitable, Callable

import pytest

from ledger.content import CHUNK_BYTES_MAX, ContentRef, ContentStore
from ledger.errors import ContentLost, Unavailable
from tests.contracts.harness import P0, TIMEOUT_S, ContentHarness

SCOPE = b"s" * 20
OTHER_SCOPE = b"t" * 20
ID = b"i" * 16
OTHER_ID = b"j" * 16
CHUNKS = [b"first", b"", b"\x00\xff third"]


async def test_put_content_is_read_back_in_chunk_order(content_harness: ContentHarness) -> None:
    store = await content_harness.start()
    chunks = [b"chunk %d" % number for number in range(256)]
    ref = await store.put(P0, SCOPE, ID, chunks, timeout_s=TIMEOUT_S)
    assert (ref.scope, ref.id, ref.chunks, ref.size_bytes) == (SCOPE, ID, 256, 0)
    assert await store.get(P0, ref, timeout_s=TIMEOUT_S) == chunks


async def test_chunks_of_the_largest_size_are_kept_whole(content_harness: ContentHarness) -> None:
    store = await content_harness.start()
    chunks = [b"a" * CHUNK_BYTES_MAX, b"b" * CHUNK_BYTES_MAX]
    ref = await store.put(P0, SCOPE, ID, chunks, timeout_s=TIMEOUT_S)
    assert await store.get(P0, ref, timeout_s=TIMEOUT_S) == chunks


async def test_put_content_survives_a_restart(content_harness: ContentHarness) -> None:
    ref = await (await content_harness.start()).put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    store = await content_harness.start()
    assert await store.get(P0, ref, timeout_s=TIMEOUT_S) == CHUNKS


async def test_content_put_again_is_the_same_content(content_harness: ContentHarness) -> None:
    store = await content_harness.start()
    first = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    second = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    assert await store.get(P0, first, timeout_s=TIMEOUT_S) == CHUNKS
    assert await store.get(P0, second, timeout_s=TIMEOUT_S) == CHUNKS


async def test_later_content_is_not_older(content_harness: ContentHarness) -> None:
    store = await content_harness.start()
    first = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    second = await store.put(P0, SCOPE, OTHER_ID, CHUNKS, timeout_s=TIMEOUT_S)
    assert 0 < first.oldest_at_ms <= second.oldest_at_ms


@pytest.mark.parametrize(("scope", "content_id"), [(OTHER_SCOPE, ID), (SCOPE, OTHER_ID)])
async def test_scope_and_id_are_both_part_of_the_key(
    content_harness: ContentHarness, scope: bytes, content_id: bytes
) -> None:
    store = await content_harness.start()
    ref = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    with pytest.raises(ContentLost):
        await store.get(P0, changed(ref, scope=scope, content_id=content_id), timeout_s=TIMEOUT_S)


async def test_missing_chunk_is_lost_and_not_a_shorter_content(content_harness: ContentHarness) -> None:
    store = await content_harness.start()
    ref = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    with pytest.raises(ContentLost):
        await store.get(P0, changed(ref, chunks=len(CHUNKS) + 1), timeout_s=TIMEOUT_S)


async def test_copy_that_has_not_come_to_the_reference_is_a_lag_and_not_a_loss(
    copying_content_harness: ContentHarness,
) -> None:
    store = await copying_content_harness.start()
    ref = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    with pytest.raises(Unavailable) as unavailable:
        await store.get(P0, changed(ref, last_offset=ref.last_offset + 1), timeout_s=0.05)
    assert unavailable.value.reason == "content_lag"


async def test_erased_content_is_gone_and_its_neighbour_is_not(content_harness: ContentHarness) -> None:
    store = await content_harness.start()
    erased = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    await store.erase(P0, [erased], timeout_s=TIMEOUT_S)
    kept = await store.put(P0, SCOPE, OTHER_ID, CHUNKS, timeout_s=TIMEOUT_S)
    # Reading what came after the erasure proves that a copy has passed it.
    assert await store.get(P0, kept, timeout_s=TIMEOUT_S) == CHUNKS
    with pytest.raises(ContentLost):
        await store.get(P0, erased, timeout_s=TIMEOUT_S)


async def test_erased_content_stays_gone_after_a_restart(content_harness: ContentHarness) -> None:
    store = await content_harness.start()
    erased = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    await store.erase(P0, [erased], timeout_s=TIMEOUT_S)
    kept = await store.put(P0, SCOPE, OTHER_ID, CHUNKS, timeout_s=TIMEOUT_S)
    store = await content_harness.start()
    assert await store.get(P0, kept, timeout_s=TIMEOUT_S) == CHUNKS
    with pytest.raises(ContentLost):
        await store.get(P0, erased, timeout_s=TIMEOUT_S)


async def test_erasing_twice_or_what_never_was_is_harmless(content_harness: ContentHarness) -> None:
    store = await content_harness.start()
    erased = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    never = changed(erased, scope=OTHER_SCOPE)
    for _ in range(2):
        await store.erase(P0, [erased, never], timeout_s=TIMEOUT_S)
    await store.erase(P0, [], timeout_s=TIMEOUT_S)
    kept = await store.put(P0, SCOPE, OTHER_ID, CHUNKS, timeout_s=TIMEOUT_S)
    assert await store.get(P0, kept, timeout_s=TIMEOUT_S) == CHUNKS


Call = Callable[[ContentStore, ContentRef], Awaitable[object]]
CALLS: dict[str, Call] = {
    "put": lambda store, _: store.put(P0, SCOPE, OTHER_ID, CHUNKS, timeout_s=TIMEOUT_S),
    "get": lambda store, ref: store.get(P0, ref, timeout_s=TIMEOUT_S),
    "erase": lambda store, ref: store.erase(P0, [ref], timeout_s=TIMEOUT_S),
}


@pytest.mark.parametrize("call", CALLS)
async def test_closed_store_says_so(content_harness: ContentHarness, call: str) -> None:
    store = await content_harness.start()
    ref = await store.put(P0, SCOPE, ID, CHUNKS, timeout_s=TIMEOUT_S)
    await store.close()
    with pytest.raises(Unavailable) as refused:
        await CALLS[call](store, ref)
    assert refused.value.reason == "closed"


def changed(
    ref: ContentRef,
    *,
    scope: bytes | None = None,
    content_id: bytes | None = None,
    chunks: int | None = None,
    last_offset: int | None = None,
) -> ContentRef:
    return ContentRef(
        scope=scope or ref.scope,
        id=content_id or ref.id,
        chunks=chunks or ref.chunks,
        size_bytes=ref.size_bytes,
        last_offset=ref.last_offset if last_offset is None else last_offset,
        oldest_at_ms=ref.oldest_at_ms,
    )
