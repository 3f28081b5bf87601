"""Settings completed from the environment; a wrong one is the caller's error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ledger.errors import InvalidInput

if TYPE_CHECKING:
    from pydantic_settings import BaseSettings

S = TypeVar("S", bound="BaseSettings")


def settings_of(kind: type[S], given: Mapping[str, Any]) -> S:
    """Return what was given, completed from the environment. Raises ``InvalidInput`` naming the setting."""
    # Here, since it takes as long to load as all else of a command that needs no settings.
    from pydantic import ValidationError

    try:
        return kind(**given)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidInput(".".join(map(str, first["loc"])), str(first["msg"])) from None
