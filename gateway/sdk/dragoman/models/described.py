"""Models whose JSON Schema contains the docstrings of their members. Pure.

Pydantic would parse the source of each class when it is defined, at every start of every command. `Documented` parses
it only when a schema is generated.
"""

import ast
import inspect
import json
from functools import cache
from itertools import pairwise
from types import ModuleType
from typing import Any

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Documented(BaseModel):
    """A model whose members are described by the docstrings below them."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(core_schema)
        members = handler.resolve_ref_schema(written).get("properties", {})
        for name, text in docstrings_of(cls).items():
            field = cls.model_fields.get(name)
            if field is not None and (field.alias or name) in members:
                members[field.alias or name].setdefault("description", text)
        return written


@cache
def docstrings_of(model: type[BaseModel]) -> dict[str, str]:
    """Find the docstrings of a model's members, including inherited ones."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, Documented):
            for member, below in pairwise(_body(base)):
                match member, below:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        found[name] = inspect.cleandoc(text)
                    case _:
                        pass
    return found


def _body(model: type) -> list[ast.stmt]:
    """Find the body of a class at the top of its module; empty if the class has no source."""
    module = inspect.getmodule(model)
    return [] if module is None else _classes(module).get(model.__qualname__, [])


@cache
def _classes(module: ModuleType) -> dict[str, list[ast.stmt]]:
    """Parse the classes of a module once: `inspect.getsource` parses the whole module for each of them."""
    try:
        source = inspect.getsource(module)
    except OSError:
        return {}
    return {one.name: one.body for one in ast.parse(source).body if isinstance(one, ast.ClassDef)}


class Described(Documented):
    """A model with one schema for writers and one for readers.

    The schema for writers (validation) is closed; members with a default are optional, and their description names the
    default. The schema for readers (serialization) is open, and requires members that are always present. Both require
    constants such as `kind`.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = super().__get_pydantic_json_schema__(core_schema, handler)
        schema = handler.resolve_ref_schema(written)
        reads = handler.mode == "serialization"
        required: list[str] = []
        for name, member in schema.get("properties", {}).items():
            default = member.pop("default", None)
            if name in schema.get("required", ()) or "const" in member or (reads and default is not None):
                required.append(name)
            elif isinstance(default, bool | int | str) and default != "":
                note = f"Default: {json.dumps(default, ensure_ascii=False)}."
                member["description"] = f"{member['description']} {note}" if "description" in member else note
            if reads:
                member.pop("writeOnly", None)
        if required:
            schema["required"] = required
        if reads and schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
        return written
