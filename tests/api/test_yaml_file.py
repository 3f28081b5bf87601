"""Strict YAML: what is read, what is refused, and how a refusal names the place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from api.yaml_file import Value, read_yaml, variable_value
from ledger.errors import InvalidInput

DIGEST = "ab" * 32


def value_of(directory: Path, written: str) -> Value:
    """Return the field ``x`` of a file, which is on its second line."""
    path = directory / "file.yaml"
    path.write_text(f"# a comment\nx: {written}\n")
    return read_yaml(path, "setting").fields({"x"})["x"]


@pytest.mark.parametrize(
    ("read", "written", "expected"),
    [
        (Value.text, "name", "name"),
        (Value.text, '"7"', "7"),
        (Value.boolean, "true", True),
        (Value.boolean, "false", False),
        (Value.sha256, DIGEST, bytes.fromhex(DIGEST)),
        (lambda value: value.text(3), "abc", "abc"),
        (lambda value: value.integer(-1, 3), "-1", -1),
        (lambda value: value.integer(-1, 3), "3", 3),
        (lambda value: value.number(0.5, 3), "0.5", 0.5),
        (lambda value: value.number(0.5, 3), "3", 3.0),
        (lambda value: value.word(("on", "off")), "off", "off"),
        (lambda value: value.word(("on", "off")), '"on"', "on"),
        (lambda value: [entry.text() for entry in value.entries()], "[a, b]", ["a", "b"]),
        (lambda value: sorted(value.fields({"a"}, {"b", "c"})), "{c: 1, a: 2}", ["a", "c"]),
    ],
)
def test_value_is_read(tmp_path: Path, read: Callable[[Value], object], written: str, expected: object) -> None:
    assert read(value_of(tmp_path, written)) == expected


@pytest.mark.parametrize(
    ("read", "written", "says"),
    [
        (Value.text, "no", "x: must be a text; quote it"),
        (Value.text, "7", "x: must be a text; quote it"),
        (Value.text, "", "x: must be a text; quote it"),
        (Value.text, "[a]", "x: must be a text; quote it"),
        (Value.text, '""', "x: must not be empty"),
        (lambda value: value.text(3), "abcd", "x: has 4 bytes; at most 3 are allowed"),
        (Value.boolean, "yes", "x: must be true or false"),
        (Value.boolean, '"true"', "x: must be true or false"),
        (Value.boolean, "[true]", "x: must be true or false"),
        (Value.sha256, DIGEST[1:], "x: must be 64 lower-case hexadecimal digits"),
        (lambda value: value.integer(0, 9), "10", "x: must be an integer from 0 to 9"),
        (lambda value: value.integer(0, 9), "-1", "x: must be an integer from 0 to 9"),
        (lambda value: value.integer(0, 9), "010", "x: must be an integer from 0 to 9"),
        (lambda value: value.integer(0, 9), "0x1", "x: must be an integer from 0 to 9"),
        (lambda value: value.integer(0, 9), "1.0", "x: must be an integer from 0 to 9"),
        (lambda value: value.integer(0, 9), '"1"', "x: must be an integer from 0 to 9"),
        (lambda value: value.integer(0, 9), "true", "x: must be an integer from 0 to 9"),
        (lambda value: value.integer(0, 9), "1" * 5_000, "x: must be an integer from 0 to 9"),
        (lambda value: value.number(0.1, 9), "0.09", "x: must be a number from 0.1 to 9"),
        (lambda value: value.number(0.1, 9), "9.1", "x: must be a number from 0.1 to 9"),
        (lambda value: value.number(0.1, 9), ".inf", "x: must be a number from 0.1 to 9"),
        (lambda value: value.number(0.1, 9), ".nan", "x: must be a number from 0.1 to 9"),
        (lambda value: value.word(("on", "off")), "none", "x: must be one of on, off"),
        (lambda value: value.word(("on", "off")), "7", "x: must be a text"),
        (Value.entries, "[]", "x: must be a list with at least one entry"),
        (Value.entries, "a", "x: must be a list with at least one entry"),
        (lambda value: value.entries()[1].text(), "[a, 7]", "x[1]: must be a text"),
        (lambda value: value.fields({"a"}, {"b"}), "[]", "x: must have the fields a, b"),
        (lambda value: value.fields({"a"}, {"b"}), "{b: 1}", "x.a: is missing"),
        (lambda value: value.fields({"a"}, {"b"}), "{a: 1, c: 1}", "x.c: is not known; there are a, b"),
        (lambda value: value.fields({"a"}, {"b"}), "{a: 1, a: 2}", "x.a: is given twice"),
        (lambda value: value.fields({"a"}, {"b"}), "{[a]: 1}", "x.a field: is not known"),
        (lambda value: value.fields({"a"})["a"].fields({"b"}), "{a: {}}", "x.a.b: is missing"),
    ],
)
def test_wrong_value_is_refused_by_line_and_field(
    tmp_path: Path, read: Callable[[Value], object], written: str, says: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read(value_of(tmp_path, written))
    assert refused.value.field == "setting"
    assert refused.value.reason.startswith(f"{tmp_path / 'file.yaml'}:2: {says}")


def test_empty_file_lacks_what_is_required(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_text("# nothing\n")
    with pytest.raises(InvalidInput, match=r"file\.yaml:1: a: is missing"):
        read_yaml(path, "setting").fields({"b", "a"})


@pytest.mark.parametrize(("content", "line"), [("a: [\n", 2), ("a: *b\n", 1), ("a: 1\n--- 2\n", 2), ("a: \x01\n", 1)])
def test_what_is_not_yaml_is_named_by_line(tmp_path: Path, content: str, line: int) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=rf"file\.yaml:{line}: is not YAML"):
        read_yaml(path, "setting")


def test_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(InvalidInput, match=r"file\.yaml cannot be read"):
        read_yaml(path, "setting")


def test_variable_is_read_like_a_value_of_the_file() -> None:
    assert variable_value("setting", "NAME", "7").integer(0, 9) == 7
    assert variable_value("setting", "NAME", "off").word(("on", "off")) == "off"
    assert variable_value("setting", "NAME", "true").boolean()


@pytest.mark.parametrize("written", ["10", "", "seven", "[7]"])
def test_wrong_variable_is_refused_by_its_name(written: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        variable_value("setting", "NAME", written).integer(0, 9)
    assert (refused.value.field, refused.value.reason) == ("setting", "NAME: must be an integer from 0 to 9")


def test_refusal_never_repeats_the_value(tmp_path: Path) -> None:
    secret = "sk-in-the-wrong-place"
    for read in (Value.boolean, Value.entries, Value.sha256, lambda value: value.word(("on", "off"))):
        with pytest.raises(InvalidInput) as refused:
            read(value_of(tmp_path, secret))
        assert secret not in str(refused.value)
