"""The JSON Schema of a tool's arguments in its plainest form: no `$ref`, no titles, little null. Pure."""

from typing import Any, cast

from pydantic import BaseModel

_ROOT = "#/$defs/"
_NULL = {"type": "null"}


def parameters_of(model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a model's arguments.

    An optional member with the default None does not allow null, because most runtimes have no null: agents omit it,
    and the gateway drops a null. Null stays allowed if omission has another meaning: in required members, in
    members with another default and in items.

    Raises:
        ValueError: a model contains itself, which requires `$ref`.
    """
    schema = model.model_json_schema()
    plain = _plain(schema, cast("dict[str, Any]", schema.get("$defs", {})), ())
    plain.setdefault("properties", {})
    plain.pop("description", None)
    return plain


def _plain(schema: Any, defs: dict[str, Any], within: tuple[str, ...], *, optional: bool = False) -> Any:
    """Return one schema without references; `within` are the enclosing definitions."""
    if isinstance(schema, list):
        return [_plain(one, defs, within) for one in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    found = dict(cast("dict[str, Any]", schema))
    if (ref := found.pop("$ref", None)) is not None:
        name = str(ref).removeprefix(_ROOT)
        if name in within:
            raise ValueError(f"{name} contains itself: {' → '.join((*within, name))}; a tool cannot use it")
        return _plain({**defs[name], **found}, defs, (*within, name), optional=optional)
    if (choices := found.get("anyOf")) is not None and _NULL in choices:
        left = [one for one in choices if one != _NULL]
        if optional and found.get("default", ...) is None:
            del found["default"], found["anyOf"]
            return _plain({**(left[0] if len(left) == 1 else {"anyOf": left}), **found}, defs, within)
        if len(left) == 1 and isinstance(left[0].get("type"), str) and not left[0].keys() & {"enum", "const"}:
            del found["anyOf"]
            found: dict[str, Any] = {**left[0], "type": [left[0]["type"], "null"], **found}
    required = found.get("required", ())
    return {
        key: {name: _plain(one, defs, within, optional=name not in required) for name, one in value.items()}
        if key in {"properties", "patternProperties"}
        else value
        if key in {"const", "default", "enum", "examples"}
        else _plain(value, defs, within)
        for key, value in found.items()
        if key not in {"$defs", "discriminator", "title"}
    }
