"""The JSON Schema of a tool's arguments as plainly as it can be said: no `$ref`, no `null`, no titles. Pure."""

from typing import Any, cast

from pydantic import BaseModel

_ROOT = "#/$defs/"
_NULL = {"type": "null"}


def parameters_of(model: type[BaseModel]) -> dict[str, Any]:
    """Write the schema that a model makes of its arguments.

    What may be None is what may be left out, since the words of most runtimes have no null. A default that is None
    is not said.

    Raises:
        ValueError: a model holds itself, which cannot be said without `$ref`.
    """
    schema = model.model_json_schema()
    plain = _plain(schema, cast("dict[str, Any]", schema.get("$defs", {})), ())
    plain.setdefault("properties", {})
    plain.pop("description", None)
    return plain


def _plain(schema: Any, defs: dict[str, Any], within: tuple[str, ...]) -> Any:
    """Write one schema without what the definitions are for; `within` are those that it stands in."""
    if isinstance(schema, list):
        return [_plain(one, defs, within) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = dict(cast("dict[str, Any]", schema))
    if (ref := found.pop("$ref", None)) is not None:
        name = str(ref).removeprefix(_ROOT)
        if name in within:
            raise ValueError(f"{name} holds itself: {' → '.join((*within, name))}; no tool can be declared with it")
        return {**_plain(defs[name], defs, (*within, name)), **_plain(found, defs, within)}
    if (choices := found.get("anyOf")) is not None and _NULL in choices:
        left = [one for one in choices if one != _NULL]
        del found["anyOf"]
        found = {**(left[0] if len(left) == 1 else {"anyOf": left}), **found}
        if found.get("default", ...) is None:
            del found["default"]
        return _plain(found, defs, within)
    return {
        key: {name: _plain(one, defs, within) for name, one in value.items()}
        if key in {"properties", "patternProperties"}
        else value
        if key in {"const", "default", "enum", "examples"}
        else _plain(value, defs, within)
        for key, value in found.items()
        if key not in {"$defs", "discriminator", "title"}
    }
