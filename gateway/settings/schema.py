"""Builds the JSON Schema of a configuration, including each adapter's options, and finds places in it. Pure."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, cast

from pydantic import BaseModel, ByteSize
from pydantic.json_schema import GenerateJsonSchema

from gateway.adapter.port import Adapter
from gateway.settings.model import Settings
from gateway.settings.place import Place

Schema = dict[str, Any]

_URL = r"^(https?://|file:|.*\$\{)"
_SHARED: Mapping[str, Schema] = {
    "Duration": {
        "description": "A span of time: 20s, 500ms, 2m, 1h, 7d, or a number of seconds.",
        "anyOf": [
            {"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d) ?)+$|\$\{"},
            {"type": "number", "minimum": 0},
        ],
    },
    "Expansion": {
        "description": "A text that `${VAR}` or `${VAR:-default}` fills in when the file is loaded.",
        "type": "string",
        "pattern": r"\$\{",
    },
    "Size": {
        "description": "A number of bytes, or a text such as 512KiB, 4MiB, 2GiB.",
        "anyOf": [
            {"type": "string", "pattern": r"^\s*\d*\.?\d+\s*([kKmMgGtTpP]?[iI]?[bB])?\s*$|\$\{"},
            {"type": "integer", "minimum": 1},
        ],
    },
}
_SPANS_AND_SIZES = {
    r"^(\d+(\.\d+)?(ms|s|m|h|d) ?)+$": "Duration",
    r"^\s*(\d*\.?\d+)\s*(\w+)?": "Size",
}
"""Patterns that identify durations and sizes in generated schemas."""
_SPANS = ((86400, "d"), (3600, "h"), (60, "m"))
_SIZES = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))


class _Generate(GenerateJsonSchema):
    """Writes defaults as in the YAML: `15s`, `4MiB`."""

    def encode_default(self, dft: Any) -> Any:
        match dft:
            case timedelta():
                seconds = dft.total_seconds()
                return next(
                    (f"{seconds / n:g}{unit}" for n, unit in _SPANS if seconds and not seconds % n), f"{seconds:g}s"
                )
            case ByteSize():
                return next((f"{dft // n}{unit}" for n, unit in _SIZES if not dft % n), int(dft))
            case BaseModel():
                return {name: self.encode_default(getattr(dft, name)) for name in type(dft).model_fields}
            case _:
                return super().encode_default(dft)


def build_schema(adapters: Mapping[str, Adapter]) -> Schema:
    """Build the schema for editors and `config/gateway.schema.json`; deterministic for the same adapters."""
    schema = Settings.model_json_schema(schema_generator=_Generate)
    definitions: dict[str, Any] = schema["$defs"]
    shared: Schema = definitions.pop("RuntimeOptions")
    variants = [_runtime(name, adapters[name], definitions) for name in sorted(adapters)]
    values: Schema = {"oneOf": variants} if variants else shared
    runtimes: Schema = schema["properties"]["runtimes"]
    runtimes["patternProperties"] = dict.fromkeys(runtimes["patternProperties"], values)
    schema["$defs"] = dict(sorted((_simplify(definitions) | _SHARED).items()))
    properties = _simplify(schema["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Dragoman configuration",
        "description": schema["description"],
        "type": "object",
        "properties": properties,
        "patternProperties": {"^x-": {"description": "Your own keys, e.g. for anchors; ignored."}},
        "additionalProperties": False,
        "$defs": schema["$defs"],
    }


def _runtime(name: str, adapter: Adapter, definitions: dict[str, Any]) -> Schema:
    prefix = f"runtime:{name}:"
    options = adapter.options.model_json_schema(schema_generator=_Generate, ref_template=f"#/$defs/{prefix}{{model}}")
    for inner, definition in options.pop("$defs", {}).items():
        definitions[prefix + inner] = definition
    options["title"] = f"{name} runtime"
    options["properties"]["adapter"] |= {"const": name}
    options["required"] = sorted({*options.get("required", []), "adapter"})
    definitions[f"runtime:{name}"] = options
    return {"$ref": f"#/$defs/runtime:{name}"}


def _simplify(node: Any) -> Any:
    """Remove noise, close patterned mappings, and allow `${VAR}` in place of other types than text."""
    match node:
        case dict():
            schema = {key: _simplify(value) for key, value in cast("Schema", node).items()}
        case list():
            return [_simplify(item) for item in cast("list[Any]", node)]
        case _:
            return node
    if isinstance(schema.get("title"), str) and not schema["title"].endswith("runtime"):
        del schema["title"]
    if "patternProperties" in schema:
        schema["additionalProperties"] = False
    if schema.get("format") == "uri":
        del schema["format"]
        schema["pattern"] = _URL
    if schema.get("default", ...) is None:
        del schema["default"]
    annotations = {key: schema[key] for key in ("description", "default") if key in schema}
    match schema.get("anyOf"):
        case [{"pattern": str() as pattern}, {"anyOf": _}] if pattern in _SPANS_AND_SIZES:
            return {"$ref": f"#/$defs/{_SPANS_AND_SIZES[pattern]}", **annotations}
        case [single, {"type": "null"}]:
            return {**cast("Schema", single), **annotations}
        case _:
            pass
    if "enum" in schema or schema.get("type") in ("integer", "number", "boolean"):
        inner = {key: value for key, value in schema.items() if key not in annotations}
        return {**annotations, "anyOf": [inner, {"$ref": "#/$defs/Expansion"}]}
    return schema


def find(schema: Schema, place: Place, values: Any) -> list[Schema]:
    """List the subschemas of a place; the values select the variants."""
    here = list(_variants(schema, schema, values))
    for step in place:
        values = child(values, step)
        here = [
            variant for parent in here for inner in _inner(parent, step) for variant in _variants(schema, inner, values)
        ]
    return here


def child(values: Any, step: str | int) -> Any:
    """Return the value one step down; None if there is none."""
    match values, step:
        case dict(), str():
            return cast("dict[str, Any]", values).get(step)
        case list(), int() if step < len(cast("list[Any]", values)):
            return cast("list[Any]", values)[step]
        case _:
            return None


def _inner(parent: Schema, step: str | int) -> Iterator[Schema]:
    if isinstance(step, int):
        candidates = [parent.get("items")]
    elif step in parent.get("properties", {}):
        candidates = [parent["properties"][step]]
    else:
        candidates = [*parent.get("patternProperties", {}).values(), parent.get("additionalProperties")]
    yield from (cast("Schema", candidate) for candidate in candidates if isinstance(candidate, dict))


def _variants(root: Schema, schema: Schema, values: Any) -> Iterator[Schema]:
    if "$ref" in schema:
        target = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        # The siblings of a $ref describe the place better than its target does.
        siblings = {key: value for key, value in schema.items() if key != "$ref"}
        yield from _variants(root, {**target, **siblings}, values)
        return
    choices: list[Schema] = [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    if not choices:
        yield schema
        return
    siblings = {key: schema[key] for key in ("description", "writeOnly") if key in schema}
    for choice in choices:
        for variant in _variants(root, {**choice, **siblings} if "$ref" not in choice else choice, values):
            if _is_selected(variant, values):
                yield {**variant, **siblings}


def _is_selected(variant: Schema, values: Any) -> bool:
    if not isinstance(values, dict):
        return True
    given = cast("dict[str, Any]", values)
    constants = {name: inner["const"] for name, inner in variant.get("properties", {}).items() if "const" in inner}
    return all(given.get(name, constant) == constant for name, constant in constants.items())
