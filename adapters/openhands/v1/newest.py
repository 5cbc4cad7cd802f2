"""A mapping of limited size. Pure."""

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")


class Newest(Generic[T]):
    """Values by name; above a limit the oldest is forgotten."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._values: OrderedDict[str, T] = OrderedDict()

    def put(self, name: str, value: T) -> None:
        """Keep a value as the newest one."""
        self._values[name] = value
        self._values.move_to_end(name)
        if len(self._values) > self._most:
            self._values.popitem(last=False)

    def get(self, name: str) -> T | None:
        """Return a value, if it is known."""
        return self._values.get(name)

    def take(self, name: str) -> T | None:
        """Remove a value and return it, if it is known."""
        return self._values.pop(name, None)
