"""Value classes that are frozen to the type checker and cheap to build at run time. Pure.

A frozen dataclass sets each field by `object.__setattr__`, which makes building one three times as dear;
a dozen are built for every call. The type checker holds everybody to not changing them all the same.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses

    def dataclass(*, frozen, slots):
        """Make a dataclass like `dataclasses.dataclass(frozen=True, slots=True)`, but for the guard."""
        return dataclasses.dataclass(slots=slots, unsafe_hash=frozen)
