"""Value classes that are frozen and cheap to build: declared like dataclasses, made by msgspec in C. Pure.

Some forty are built for every call, and a dataclass builds each by a function of Python that sets field after field.
"""

import dataclasses
from functools import partial
from typing import Any, TypeVar, cast, dataclass_transform

import msgspec
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

Value = TypeVar("Value")

_NOT_TAKEN_OVER = frozenset({"__dict__", "__weakref__", "__init__"})
_COMPARED_IN_C = frozenset({"__eq__", "__hash__", "__repr__"})


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def frozen(cls: type[Value]) -> type[Value]:
    """Make a class like `dataclasses.dataclass(frozen=True, slots=True)`, whose values take half the time to build.

    It stands for a dataclass wherever one is wanted: `dataclasses.replace`, `fields` and `asdict` take its values, and
    pydantic reads and writes them. A class that inherits from it has its fields, and takes this decorator too.

    Raises:
        TypeError: a field beside inherited ones has no default, or one by `field`.
    """
    if isinstance(cls, msgspec.StructMeta):
        _add_fields(cls)
        return cls
    declared = dataclasses.dataclass(unsafe_hash=True)(cls)
    fields = dataclasses.fields(cast("Any", declared))
    left_out = _NOT_TAKEN_OVER.union(field.name for field in fields)
    if all(field.compare and field.repr for field in fields):
        left_out |= _COMPARED_IN_C
    members: dict[str, Any] = {name: value for name, value in vars(declared).items() if name not in left_out}
    members["__get_pydantic_core_schema__"] = classmethod(_schema_for_pydantic)
    made: Any = msgspec.defstruct(
        cls.__name__, [_declare(field) for field in fields], namespace=members, module=cls.__module__, frozen=True
    )
    made.__qualname__ = cls.__qualname__
    return made


def replace(value: Value, /, **changes: Any) -> Value:
    """Make a value of a `frozen` class that differs in some fields; `dataclasses.replace` takes several times as long.

    Raises:
        TypeError: it has no such field.
    """
    return _REPLACE(value, **changes)


_REPLACE: Any = msgspec.structs.replace
"""Without the types of its own, which know nothing of what `frozen` has made."""


def _add_fields(cls: Any) -> None:
    """Declare what a class has besides what it inherits, which msgspec has made of it already."""
    own = [field for field in msgspec.structs.fields(cls) if field.name in cls.__annotations__]
    for field in own:
        if field.required or isinstance(field.default, dataclasses.Field):
            raise TypeError(f"{cls.__name__}.{field.name}: a field beside inherited ones takes a plain default")
    named = [(field.name, field.type, dataclasses.field(default=field.default)) for field in own]
    declared: Any = dataclasses.make_dataclass(cls.__name__, named)
    cls.__dataclass_fields__ = cls.__dataclass_fields__ | declared.__dataclass_fields__


def _declare(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.name, field.type, msgspec.field(default_factory=field.default_factory)
    if field.default is not dataclasses.MISSING:
        return field.name, field.type, field.default
    return field.name, field.type


def _schema_for_pydantic(cls: type[Any], source: type[Any], handler: GetCoreSchemaHandler) -> CoreSchema:
    written = handler(source)
    # Written like a dataclass, whose validator would set its fields one by one; read by what reads their values.
    values = cast("core_schema.DataclassSchema", handler.resolve_ref_schema(written))["schema"]
    read = core_schema.no_info_after_validator_function(partial(_build, cls), values)
    return core_schema.lax_or_strict_schema(lax_schema=read, strict_schema=written)


def _build(cls: type[Value], told: tuple[dict[str, Any], None]) -> Value:
    return cls(**told[0])
