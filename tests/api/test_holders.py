"""The map of who holds what: what it may say, and what a process with it refuses to start with."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.holders import Holders
from api.serve import ServiceSettings, run
from api.urls import URL_BYTES_MAX
from ledger.errors import InvalidInput
from ledger.turn import Partition

A, B = "http://a:8420", "https://b.internal/ledger"


def test_every_partition_of_a_range_has_its_urls_in_order() -> None:
    holders = Holders.parse(f" 0-1={A}| {B}/ ,3={B},2={A}")
    assert [holders.of(Partition(number)).urls for number in range(4)] == [(A, B), (A, B), (A,), (B,)]
    assert str(holders.of(Partition(1))) == "0-1"
    holders.check({Partition(0)}, 4)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be <range>=<url>"),
        ("0-1", "must be <range>=<url>"),
        (f"={A}", "'' is no range of partitions"),
        (f"1-0={A}", "ends before it begins"),
        (f"0-65536={A}", "partition 65536 is above 65535"),
        (f"0-1={A},1={B}", "partition 1 is in two ranges"),
        ("0=", "must have only visible ASCII"),
        (f"0={A}|", "must have only visible ASCII"),
        ("0=a:8420", "must be an http or https URL with a host"),
        ("0=ftp://a", "must be an http or https URL with a host"),
        ("0=http://", "must be an http or https URL with a host"),
        ("0=http://a:0", "must be an http or https URL with a host"),
        ("0=http://a:65536", "must be an http or https URL with a host"),
        ("0=http://user:secret@a", "must have no user and password"),
        ("0=http://a?x=1", "must have no query and no fragment"),
        ("0=http://a..b:8420", "must have a host whose parts between dots have 1 to 63 characters"),
        ("0=http://.a", "must have a host whose parts between dots have 1 to 63 characters"),
        (f"0=http://{'a' * 64}.b", "must have a host whose parts between dots have 1 to 63 characters"),
        ("0=http://127.1", "must have a name for a host, or an address of four decimal numbers"),
        ("0=http://010.0.0.1", "must have a name for a host, or an address of four decimal numbers"),
        ("0=http://2130706433", "must have a name for a host, or an address of four decimal numbers"),
        (f"0={A}|{A}/", "names a URL twice"),
        ("0=http://a/" + "a" * (URL_BYTES_MAX - 8), f"must have at most {URL_BYTES_MAX} bytes"),
    ],
)
def test_what_is_no_map_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        Holders.parse(text)
    assert refused.value.field == "holders"
    assert "secret" not in str(refused.value)


def test_longest_url_is_taken() -> None:
    url = "http://a/" + "a" * (URL_BYTES_MAX - 9)
    assert len(url) == URL_BYTES_MAX
    assert Holders.parse(f"0={url}").of(Partition(0)).urls == (url,)


@pytest.mark.parametrize("host", ["a" * 63, f"{'a' * 63}.b.", "[::1]", "[fe80::1%25lo]", "127.0.0.1", "a_b"])
def test_host_that_can_be_asked_for_is_taken(host: str) -> None:
    assert Holders.parse(f"0=http://{host}:8420").of(Partition(0)).urls == (f"http://{host}:8420",)


def test_partitions_without_a_holder_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"must say who holds partitions 1-2,5, which this replica does not hold"):
        Holders.parse(f"3-4={A}").check({Partition(0)}, 6)
    Holders.parse(f"0-5={A}").check({Partition(0)}, 6)
    with pytest.raises(InvalidInput, match=r"the log has the partitions 0 to 5, not 6"):
        Holders.parse(f"0-6={A}").check({Partition(0)}, 6)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"partitions": "x"}, "partitions: 'x' is no range"),
        ({"holders": "x"}, "holders: 'x' must be <range>=<url>"),
        ({"partitions": "0"}, "partitions: is for state on Kafka, and this process has it embedded"),
        ({"holders": f"0={A}"}, "holders: is for state on Kafka, and this process has it embedded"),
    ],
)
def test_process_that_is_given_the_wrong_thing_ends_with_the_setting(
    tmp_path: Path, given: dict[str, str], reason: str
) -> None:
    with pytest.raises(InvalidInput, match=reason):
        run(ServiceSettings(directory=tmp_path / "state", port=0, **given))  # type: ignore[arg-type]  # by name
    assert not (tmp_path / "state").exists()
