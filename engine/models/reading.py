"""Reading numbers out of a config.json with errors that name the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import CheckpointError

__all__ = ["Fields"]

_ABSENT: Any = object()


class Fields:
    """A table of a config.json. Every reader raises CheckpointError naming file, key and value."""

    def __init__(self, table: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._table, self._where, self._prefix = table, where, prefix

    def fault(self, key: str, why: str) -> CheckpointError:
        return CheckpointError(
            f"{self._where}: {self._prefix}{key} {why}.",
            "The config.json is damaged or of a model that this program does not know.",
            path=self._where,
        )

    def __contains__(self, key: str) -> bool:
        return self._table.get(key) is not None

    def _get(self, key: str, default: Any) -> Any:
        value = self._table.get(key)
        if value is None:
            if default is _ABSENT:
                raise self.fault(key, "is missing")
            return default
        return value

    def whole(self, key: str, default: Any = _ABSENT, *, least: int = 1, most: int = 1 << 40) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fault(key, f"is {value!r}, expected a whole number from {least} to {most}")
        return value

    def number(self, key: str, default: Any = _ABSENT) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
            raise self.fault(key, f"is {value!r}, expected a positive number")
        return float(value)

    def even_share(self, key: str, of: int, default: float) -> int:
        """How many of `of` features a share of them is; an even number of at least two."""
        count = int(of * self.number(key, default))
        if count % 2 or not 0 < count <= of:
            raise self.fault(key, f"means {count} of {of} features, expected an even number of them")
        return count

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self.fault(key, f"is {value!r}, expected true or false")
        return value

    def choice(self, key: str, known: Sequence[str], default: Any = _ABSENT) -> str:
        value = self._get(key, default)
        if value not in known:
            raise self.fault(key, f"is {value!r}; known are {', '.join(known)}")
        return value

    def words(self, key: str) -> list[str]:
        """A list of texts; [] where it is absent."""
        value = self._get(key, [])
        if not isinstance(value, list) or any(not isinstance(v, str) for v in value):
            raise self.fault(key, "is not a list of texts")
        return value

    def wholes(self, key: str, least: int, most: int) -> list[int]:
        """A sorted list of different whole numbers; [] where it is absent."""
        value = self._get(key, [])
        if not isinstance(value, list) or any(type(v) is not int or not least <= v <= most for v in value):
            raise self.fault(key, f"is {value!r}, expected a list of numbers from {least} to {most}")
        return sorted(set(value))

    def first_whole(self, key: str, most: int) -> int:
        """A token id up to `most`, or the first of a list of them."""
        value = self._get(key, _ABSENT)
        if isinstance(value, list) and value:
            value = value[0]
        if type(value) is not int or not 0 <= value <= most:
            raise self.fault(key, f"is {value!r}, expected a token id up to {most}")
        return value

    def table(self, key: str) -> Fields:
        """A table below; an empty one where it is absent."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            raise self.fault(key, "is not a table")
        return Fields(value, self._where, f"{self._prefix}{key}.")
