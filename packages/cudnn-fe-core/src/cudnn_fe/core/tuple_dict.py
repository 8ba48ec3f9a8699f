"""`TupleDict`: what a wrapper returns, readable by name and by position."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

__all__ = ["TupleDict"]


# A type checker takes the type of the keys for what unpacking yields.
class TupleDict(dict[Any, Any]):
    """A dict of results that unpacks like a tuple of its values.

    Iteration yields values in the order of construction, ``td[0]`` is the first value and ``td["name"]`` the
    value of a key. Absent optional results are present with the value None, so the number of values is fixed.
    Keys added later are reachable by name only. Negative positions are refused.

    Example:
        >>> first, second = TupleDict(first=1, second=2)
        >>> first, second
        (1, 2)
    """

    __slots__ = ("_order",)
    __hash__ = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        dict.__init__(self, *args, **kwargs)
        self._order = tuple(dict.keys(self)) if args else tuple(kwargs)

    def __iter__(self) -> Iterator[Any]:
        return iter([dict.__getitem__(self, key) for key in self._order])

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, int):
            if not 0 <= key < len(self._order):
                raise IndexError(f"position {key} is outside 0..{len(self._order) - 1}")
            key = self._order[key]
        return dict.__getitem__(self, key)

    def __reduce__(self) -> tuple[Any, ...]:
        # Keys that were added later must not join the order on the way through pickle or copy.
        return TupleDict, ({key: dict.__getitem__(self, key) for key in self._order},), None, None, iter(self.items())

    def copy(self) -> TupleDict:
        """A shallow copy."""
        return copy(self)
