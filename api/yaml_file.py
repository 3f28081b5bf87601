"""YAML files that a person writes, read strictly: every refusal names file, line and field.

Rules it keeps: an unknown field, a field given twice and a missing one are refused; a value is never converted silently
(``no`` is not a name, ``010`` is not eight); a value is never repeated in a message, as it may be a secret in the wrong
place. A value from the environment is read by the same rules, and its refusals name the variable.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from ledger.errors import InvalidInput
from ledger.turn import SCOPE_BYTES_MAX, checked_text

_TAG = "tag:yaml.org,2002:"
_RESOLVER = yaml.resolver.Resolver()
"""Says what a plain word is; stateless without a document."""
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,9})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value, and how a refusal names it."""

    setting: str
    """The setting that the file is of: ``field`` of the ``InvalidInput``."""
    place: str
    """``<file>``; empty for a variable of the environment."""
    field: str
    """Path of the field in the file, empty for the whole file; or the variable's name."""
    node: yaml.Node
    """YAML's own reading, which knows its line."""

    def refuse(self, reason: str) -> NoReturn:
        """Raise ``InvalidInput``: ``<file>:<line>: <field>: <reason>``."""
        self._refuse(self.node, self.field or "file", reason)

    def fields(self, required: Collection[str], optional: Collection[str] = ()) -> dict[str, Value]:
        """Return the fields of a mapping by name: all of ``required``, and those of ``optional`` that are there."""
        known = ", ".join(sorted({*required, *optional}))
        if not isinstance(self.node, yaml.MappingNode):
            self.refuse(f"must have the fields {known}")
        fields: dict[str, Value] = {}
        for key, node in self.node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else "a field"
            field = self._path(name)
            if name not in required and name not in optional:
                self._refuse(key, field, f"is not known; there are {known}")
            if name in fields:
                self._refuse(key, field, "is given twice")
            fields[name] = Value(setting=self.setting, place=self.place, field=field, node=node)
        for name in sorted(set(required) - fields.keys()):
            self._refuse(self.node, self._path(name), "is missing")
        return fields

    def entries(self) -> Sequence[Value]:
        """Return the entries of a list, at least one."""
        if not isinstance(self.node, yaml.SequenceNode) or not self.node.value:
            self.refuse("must be a list with at least one entry")
        return [
            Value(setting=self.setting, place=self.place, field=f"{self.field}[{index}]", node=node)
            for index, node in enumerate(self.node.value)
        ]

    def scalar(self) -> str | None:
        """Return a single value as it is written, whatever YAML takes it for; None for a list or a mapping."""
        if not isinstance(self.node, yaml.ScalarNode):
            return None
        written: str = self.node.value
        return written

    def text(self, bytes_max: int = SCOPE_BYTES_MAX) -> str:
        """Return a text that is not empty and has at most ``bytes_max`` bytes."""
        written = self._scalar_of("str")
        if written is None:
            self.refuse("must be a text; quote it if it looks like a number, a date or yes and no")
        try:
            checked_text(self.field, written, bytes_max)
        except InvalidInput as error:
            self.refuse(error.reason)
        return written

    def word(self, words: Collection[str]) -> str:
        """Return one of ``words``; ``off`` may be one, although YAML 1.1 takes it for a boolean."""
        written = self.scalar()
        if written is None or written not in words:
            self.text()
            self.refuse(f"must be one of {', '.join(words)}")
        return written

    def integer(self, low: int, high: int) -> int:
        """Return a decimal integer in ``low … high``."""
        written = self._scalar_of("int")
        if written is None or not _INTEGER.fullmatch(written) or not low <= int(written) <= high:
            self.refuse(f"must be an integer from {low} to {high}")
        return int(written)

    def number(self, low: float, high: float) -> float:
        """Return a decimal number in ``low … high``."""
        written = self._scalar_of("int", "float")
        if written is None or not _NUMBER.fullmatch(written) or not low <= float(written) <= high:
            self.refuse(f"must be a number from {low:g} to {high:g}")
        return float(written)

    def boolean(self) -> bool:
        """Return true or false."""
        written = self._scalar_of("bool")
        if written not in ("true", "false"):
            self.refuse("must be true or false")
        return written == "true"

    def sha256(self) -> bytes:
        """Return the SHA-256 digest of something that the file must not hold itself."""
        digits = self.text()
        if not re.fullmatch("[0-9a-f]{64}", digits):
            self.refuse("must be 64 lower-case hexadecimal digits")
        return bytes.fromhex(digits)

    def _scalar_of(self, *kinds: str) -> str | None:
        return self.scalar() if self.node.tag in {_TAG + kind for kind in kinds} else None

    def _path(self, name: str) -> str:
        return f"{self.field}.{name}" if self.field else name

    def _refuse(self, node: yaml.Node, field: str, reason: str) -> NoReturn:
        place = f"{self.place}:{node.start_mark.line + 1}: " if self.place else ""
        raise InvalidInput(self.setting, f"{place}{field}: {reason}")


def read_yaml(path: Path, setting: str) -> Value:
    """Return the whole of a YAML file. Raises ``InvalidInput`` of ``setting`` when it cannot be read or is not YAML."""
    try:
        root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(setting, f"{path} cannot be read: {error}") from None
    except yaml.MarkedYAMLError as error:
        line = 1 if error.problem_mark is None else error.problem_mark.line + 1
        raise InvalidInput(setting, f"{path}:{line}: is not YAML: {error.problem}") from None
    except yaml.YAMLError as error:
        raise InvalidInput(setting, f"{path}:1: is not YAML: {error}") from None
    if root is None:
        # An empty file has no fields: what is missing is then said by name, as in any other file.
        mark = yaml.Mark(str(path), 0, 0, 0, "", 0)
        root = yaml.MappingNode(_TAG + "map", [], mark, mark)
    return Value(setting=setting, place=str(path), field="", node=root)


def variable_value(setting: str, name: str, written: str) -> Value:
    """Return the value of a variable of the environment, read as if it were written in a file of ``setting``."""
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, written, (True, False))  # type: ignore[no-untyped-call]  # PyYAML's
    return Value(setting=setting, place="", field=name, node=yaml.ScalarNode(tag, written))
