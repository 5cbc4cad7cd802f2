"""Checks the JSON Schemas of routes: those that no call fits, and those that more calls fit than they seem to. Pure.

A schema ignores what it does not know and what is not there: a misspelt keyword restricts nothing, `properties`
demands no member, and `maximum` accepts every text. In a policy each of these lets calls through.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from gateway.core.arguments import Fragment
from gateway.settings.place import Finding, Place, suggest

Schema = Mapping[str, Any]
Parameters = Mapping[str, Schema]
"""The schemas of the declared tools that a route matches, by name."""

_ONE = frozenset(
    {
        "not", "if", "then", "else", "items", "additionalItems", "additionalProperties", "contains", "contentSchema",
        "propertyNames", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
_BOUNDS: Mapping[str, str] = {
    "minimum": "number", "maximum": "number", "exclusiveMinimum": "number", "exclusiveMaximum": "number",
    "multipleOf": "number",
    "pattern": "string", "minLength": "string", "maxLength": "string",
    "items": "array", "prefixItems": "array", "contains": "array", "minItems": "array", "maxItems": "array",
    "uniqueItems": "array",
    "properties": "object", "required": "object", "additionalProperties": "object", "patternProperties": "object",
    "minProperties": "object", "maxProperties": "object", "propertyNames": "object", "dependentRequired": "object",
}  # fmt: skip
"""The keywords that look at values of one type only."""
_OTHERS = frozenset(
    {
        "type", "enum", "const", "minContains", "maxContains", "format", "contentEncoding", "contentMediaType",
        "title", "description", "default", "deprecated", "examples", "readOnly", "writeOnly",
        "$ref", "$schema", "$id", "id", "$anchor", "$comment", "$dynamicRef", "$dynamicAnchor", "$recursiveRef",
        "$recursiveAnchor", "$vocabulary",
    }
)  # fmt: skip
_KEYWORDS = frozenset({*_ONE, *_SEVERAL, *_NAMED, *_BOUNDS, *_OTHERS})
_SAYS_NOTHING = frozenset(
    {
        "$schema", "$id", "id", "$defs", "definitions", "$comment", "title", "description", "default", "deprecated",
        "examples", "readOnly", "writeOnly", "format", "contentEncoding", "contentMediaType",
    }
)  # fmt: skip
_RANGES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "number": (("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")),
    "string": (("minLength", "maxLength"),),
    "array": (("minItems", "maxItems"),),
    "object": (("minProperties", "maxProperties"),),
}
_TYPES = frozenset({"string", "number", "boolean", "object", "array", "null"})
_EXCLUSIVE = ("exclusiveMinimum", "exclusiveMaximum")
_DEEPEST = 12


def lint_fragment(schema: Schema, place: Place, tools: Parameters) -> Iterator[Finding]:
    """Check the schema of one route; `tools` are the declared tools that the route matches."""
    unknown = list(_unknown(schema, place))
    yield from unknown
    if unknown:
        return
    if not set(schema) - _SAYS_NOTHING:
        yield Finding(place, "restricts nothing, so any arguments match; put them under `properties`, or remove this")
        return
    contradiction = _contradiction([{"type": "object"}, schema], ())
    if contradiction is not None:
        inner, text = contradiction
        yield Finding((*place, *inner), f"no arguments can match: {text}")
        return
    refusing = [name for name, tool in tools.items() if _contradiction([{"type": "object"}, schema, tool], ())]
    if tools and len(refusing) == len(tools):
        (inner, text) = _contradiction([{"type": "object"}, schema, tools[refusing[0]]], ()) or ((), "")
        yield Finding((*place, *inner), f"no arguments that the schema of {refusing[0]!r} accepts can match: {text}")
        return
    yield from _loose(schema, place, list(tools.values()))


def _unknown(schema: object, place: Place) -> Iterator[Finding]:
    """Find the keys that are no keywords: they restrict nothing."""
    if not isinstance(schema, Mapping):
        return
    for key, value in cast("Schema", schema).items():
        if key not in _KEYWORDS and not key.startswith("x-"):
            known = suggest(key, _KEYWORDS)
            fix = known if known.startswith("did you mean") else "put the names of arguments under `properties`"
            yield Finding((*place, key), f"{key!r} is no keyword of JSON Schema, so it restricts nothing; {fix}")
        elif key in _NAMED and isinstance(value, Mapping):
            for name, one in cast("Schema", value).items():
                yield from _unknown(one, (*place, key, name))
        elif key in _ONE or key in _SEVERAL:
            inner = enumerate(cast("list[object]", value)) if isinstance(value, list) else ()
            for number, one in inner:
                yield from _unknown(one, (*place, key, number))
            yield from _unknown(cast("object", value), (*place, key))


def _loose(schema: Schema, place: Place, tools: Sequence[Schema]) -> Iterator[Finding]:
    """Find what lets more arguments match than the schema seems to say."""
    properties = _named(schema, "properties")
    for name, inner in properties.items():
        where = (*place, "properties", name)
        theirs = [_named(tool, "properties") for tool in tools if "properties" in tool]
        if theirs and not any(name in one for one in theirs):
            known = [other for one in theirs for other in one]
            yield _warn(where, f"no tool of this route declares an argument {name!r}; {suggest(name, known)}")
            continue
        if not _demands(schema, name) and not (tools and all(_demands(tool, name) for tool in tools)):
            text = f"arguments without {name!r} match, too; add `required: [{name}]` if they should not"
            yield _warn(where, text)
        if isinstance(inner, Mapping):
            told = [one[name] for one in theirs if isinstance(one.get(name), Mapping)]
            yield from _untyped(cast("Schema", inner), where, told)
            yield from _loose(cast("Schema", inner), where, told)


def _untyped(schema: Schema, place: Place, tools: Sequence[Schema]) -> Iterator[Finding]:
    if "format" in schema:
        yield _warn((*place, "format"), "is not checked; write a `pattern`")
    if {"type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf"} & set(schema):
        return
    if tools and all({"type", "enum", "const"} & set(tool) for tool in tools):
        return
    key = next((key for key in schema if key in _BOUNDS), None)
    if key is not None:
        text = f"values of any other type than {_BOUNDS[key]} match, too; add `type: {_BOUNDS[key]}`"
        yield _warn((*place, key), text)


def _demands(schema: Schema, name: str) -> bool:
    """Whether a schema requires a member, if only in one of its branches."""
    branches = [one for key in ("allOf", "anyOf", "oneOf") for one in cast("list[object]", schema.get(key) or [])]
    nodes = [schema, *(cast("Schema", one) for one in branches if isinstance(one, Mapping))]
    return any(name in cast("list[str]", node.get("required") or []) for node in nodes)


def _named(schema: Schema, key: str) -> Schema:
    found = schema.get(key)
    return cast("Schema", found) if isinstance(found, Mapping) else {}


def _contradiction(schemas: Sequence[object], at: Place, *, depth: int = 0) -> tuple[Place, str] | None:
    """Find why no value matches all schemas at once; None if one may. `at` is the place in the first route's schema."""
    if any(schema is False for schema in schemas):
        return at, "the schema is `false`"
    nodes = _flat([cast("Schema", schema) for schema in schemas if isinstance(schema, Mapping)])
    if depth > _DEEPEST or any("$ref" in node or "$dynamicRef" in node for node in nodes):
        return None
    types = _TYPES.intersection(*(_types(node) for node in nodes))
    if not types:
        return (*at, "type"), "the types exclude each other" if at else "arguments are always an object"
    return (
        _no_choice(nodes, at)
        or _no_range(nodes, types, at)
        or _no_member(nodes, types, at, depth)
        or (_no_branch(nodes, at, depth))
    )


def _flat(nodes: Sequence[Schema]) -> list[Schema]:
    found = list(nodes)
    for node in found:
        inner = node.get("allOf")
        found += [cast("Schema", one) for one in cast("list[object]", inner or []) if isinstance(one, Mapping)]
    return found


def _types(node: Schema) -> set[str]:
    given = node.get("type")
    names = [given] if isinstance(given, str) else cast("list[str]", given) if isinstance(given, list) else _TYPES
    return {"number" if name == "integer" else name for name in names}


def _no_choice(nodes: Sequence[Schema], at: Place) -> tuple[Place, str] | None:
    """Find an `enum` or `const` of which no value matches all schemas."""
    for node in nodes:
        key = "const" if "const" in node else "enum"
        if key in node:
            values = cast("list[Any]", [node["const"]] if key == "const" else node["enum"])
            compiled = [Fragment(one) for one in nodes]
            if not any(all(one.fits(value) for one in compiled) for value in values):
                return (*at, key), "the other conditions exclude each of these values"
    return None


def _no_range(nodes: Sequence[Schema], types: Collection[str], at: Place) -> tuple[Place, str] | None:
    for kind, ranges in _RANGES.items():
        if set(types) != {kind}:
            continue
        low = [node[key] for node in nodes for key, _ in ranges if _is_number(node.get(key))]
        high = [node[key] for node in nodes for _, key in ranges if _is_number(node.get(key))]
        if low and high and max(low) > min(high):
            return at, f"it would have to be at least {max(low)} and at most {min(high)}"
        strict = [node[key] for node in nodes for key in _EXCLUSIVE if _is_number(node.get(key))]
        if low and high and max(low) == min(high) and max(low) in strict:
            return at, f"it would have to be exactly {max(low)}, which is excluded"
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _no_member(nodes: Sequence[Schema], types: Collection[str], at: Place, depth: int) -> tuple[Place, str] | None:
    """Find a required member that no object can have."""
    if set(types) != {"object"}:
        return None
    names = [name for node in nodes for name in cast("list[str]", node.get("required") or [])]
    for name in dict.fromkeys(names):
        for node in nodes:
            closed = node.get("additionalProperties") is False and "patternProperties" not in node
            if closed and name not in _named(node, "properties"):
                return (*at, "required"), f"{name!r} is required and not allowed"
        inner = [_named(node, "properties")[name] for node in nodes if name in _named(node, "properties")]
        if inner and (found := _contradiction(inner, (*at, "properties", name), depth=depth + 1)) is not None:
            return found
    return None


def _no_branch(nodes: Sequence[Schema], at: Place, depth: int) -> tuple[Place, str] | None:
    for node in nodes:
        if node.get("not") in ({}, True):
            return (*at, "not"), "it excludes everything"
        for key in ("anyOf", "oneOf"):
            branches = cast("list[object]", node.get(key) or [])
            rest = [*(other for other in nodes if other is not node), {k: v for k, v in node.items() if k != key}]
            if branches and all(_contradiction([*rest, one], at, depth=depth + 3) for one in branches):
                return (*at, key), "each branch contradicts the other conditions"
    return None


def _warn(place: Place, message: str) -> Finding:
    return Finding(place, message, "warning")
