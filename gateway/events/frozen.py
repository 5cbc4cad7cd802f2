"""Value classes that are frozen to the type checker and cheap to build at run time. Pure.

A frozen dataclass sets each field by `object.__setattr__`, which makes building one three times as dear;
a dozen are built for every call. The type checker holds everybody to not changing them all the same.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
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
    new = _copier(type(value))(value)
    for name, given in changes.items():
        setattr(new, name, given)
    return new


@cache
def _copier(cls: type[Any]) -> Callable[[Any], Any]:
    """Write the function that makes an equal value, as dataclasses write theirs: to ask for fields by name is slow."""
    fields = ", ".join([f"_value.{field.name}" for field in dataclasses.fields(cls)])
    return eval(f"lambda _value: _cls({fields})", {"_cls": cls})  # noqa: S307 - of our own names
