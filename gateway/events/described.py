"""Models whose JSON Schema says what the docstrings of their members say. Pure.

Pydantic reads such docstrings when a class is made, from its source: at each start of each command. Here they are
read when a schema is asked for.
"""

import ast
import inspect
import textwrap
from functools import cache
from itertools import pairwise
from typing import Any

import orjson
from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Documented(BaseModel):
    """A model whose members are described by the docstrings that stand below them."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(core_schema)
        members = handler.resolve_ref_schema(written).get("properties", {})
        for name, told in docstrings_of(cls).items():
            field = cls.model_fields.get(name)
            if field is not None and (field.alias or name) in members:
                members[field.alias or name].setdefault("description", told)
        return written


@cache
def docstrings_of(model: type[BaseModel]) -> dict[str, str]:
    """Find the docstrings of a model's members, those that it inherits included."""
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
    """Parse what stands in a class; nothing, where it was made without source."""
    try:
        source = inspect.getsource(model)
    except OSError:
        return []
    match ast.parse(textwrap.dedent(source)).body:
        case [ast.ClassDef(body=body)]:
            return body
        case _:
            return []


class Described(Documented):
    """A model that is described as it is written, and as it is read.

    As it is written, it is closed, and what has a default may be left out: the description names the default. As it
    is read, it is open, and what is always there is required. A constant such as `kind` is required in both.
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
                told = f"Default: {orjson.dumps(default).decode()}."
                member["description"] = f"{member['description']} {told}" if "description" in member else told
            if reads:
                member.pop("writeOnly", None)
        if required:
            schema["required"] = required
        if reads and schema.get("additionalProperties") is False:
            del schema["additionalProperties"]
        return written
