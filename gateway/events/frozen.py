"""Value classes that are frozen to the type checker and cheap to build at run time. Pure.

A frozen dataclass sets each field by `object.__setattr__`, which makes building one three times as dear;
a dozen are built for every call. The type checker holds everybody to not changing them all the same.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[Value]) -> type[Value]:
    """Make a dataclass like `dataclasses.dataclass(frozen=True, slots=True)`, but for the guard."""
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(cls)


def replace(value: Value, /, **changes: Any) -> Value:
    """Make a value of a `frozen` class that differs in some fields; `dataclasses.replace` takes several times as long.

    Raises:
        AttributeError: it has no such field.
    """
    new = type(value)(*_fields_of(type(value))(value))
    for name, given in changes.items():
        setattr(new, name, given)
    return new


@cache
def _fields_of(cls: type[Any]) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in dataclasses.fields(cls)]
    # Of one field alone it would get no tuple.
    return attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
