"""Value classes that are frozen to the type checker and cheap to build at run time. Pure.

A frozen dataclass sets each field by `object.__setattr__`, which makes building one three times as dear;
a dozen are built for every call. The type checker holds everybody to not changing them all the same.
"""

import dataclasses
from typing import TypeVar, dataclass_transform

Value = TypeVar("Value")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[Value]) -> type[Value]:
    """Make a dataclass like `dataclasses.dataclass(frozen=True, slots=True)`, but for the guard."""
    return dataclasses.dataclass(slots=True, unsafe_hash=True)(cls)
