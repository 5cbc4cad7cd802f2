"""Models whose JSON Schema reads apart for those who write a value and those who read it. Pure."""

from typing import Any

import orjson
from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic_core import CoreSchema


class Described(BaseModel):
    """A model that is described as it is written, and as it is read.

    As it is written, it is closed, and what has a default may be left out: the description names the default. As it
    is read, it is open, and what is always there is required. A constant such as `kind` is required in both.
    """

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        written = handler(core_schema)
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
