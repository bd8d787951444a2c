"""A dictionary of bounded size that forgets what was used least recently."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar, final

K = TypeVar("K")
V = TypeVar("V")


@final
class Lru(Generic[K, V]):
    """Values by key, the `size` used last; 0 keeps none.

    For values that are looked at before they are used, or that are replaced or forgotten one by one:
    what depends on its arguments alone is remembered by `functools.lru_cache`.
    """

    __slots__ = ("_size", "_values")

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value of `key`, which is the one used last from now on; None: there is none."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
        return value

    def put(self, key: K, value: V) -> None:
        """Keep `value`, instead of an earlier one of `key`, and perhaps of the key used longest ago."""
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._size:
            self._values.popitem(last=False)

    def drop(self, key: K) -> None:
        """Forget the value of `key`, if there is one."""
        self._values.pop(key, None)
