"""Checks a call's arguments against the tool's declared JSON Schema and tells the agent what to fix. Pure.

Only declared tools are checked. Patterns run on an engine without backtracking, so no argument can
make one slow; `format` is an annotation, as JSON Schema 2020-12 says; nothing is ever fetched.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NoReturn, cast

import jsonschema_rs

from gateway.adapter.port import Tool
from gateway.core.nulls import Fitted, find_nulls, losses_of, missed_in, without
from gateway.visible import show_hidden

_MAX_PROBLEMS = 5
_MAX_TEXT = 1_000
_MAX_PROBLEM = 300
_MAX_VALUE = 60
_MAX_POINTER = 120
_MAX_OPTIONS = 20
_MAX_NODES = 2_000
_REGEX_BYTES = 1_000_000

_TYPES = {
    "string": "a string",
    "number": "a number",
    "integer": "an integer",
    "boolean": "true or false",
    "object": "an object",
    "array": "an array",
    "null": "null",
}
_LIMITS = {
    "minimum": "is too small; at least {} is allowed",
    "maximum": "is too large; at most {} is allowed",
    "exclusiveMinimum": "is too small; it must be above {}",
    "exclusiveMaximum": "is too large; it must be below {}",
    "multipleOf": "is not allowed; it must be a multiple of {}",
    "minLength": "is too short; at least {} characters are allowed",
    "maxLength": "is too long; at most {} characters are allowed",
    "minItems": "has too few items; at least {} are allowed",
    "maxItems": "has too many items; at most {} are allowed",
    "minProperties": "has too few members; at least {} are allowed",
    "maxProperties": "has too many members; at most {} are allowed",
    "pattern": "is not allowed; it must match the pattern {}",
    "const": "is not allowed; allowed is {}",
    "format": "is not allowed; it must be a valid {}",
}


class ArgumentValidator:
    """All declared tools, compiled once; `fit` is then safe and quick for any JSON."""

    def __init__(self, tools: Mapping[str, Tool], *, keeping_nulls: Collection[str] = ()) -> None:
        """Compile every tool's parameters. The tools `keeping_nulls` get each null as it was sent.

        Raises:
            ValueError: a schema is invalid; `problems_in_schema` finds that out beforehand.
        """
        self._keeping_nulls = frozenset(keeping_nulls)
        self._compiled: dict[str, tuple[jsonschema_rs.Validator, dict[str, Any]]] = {}
        for name, tool in tools.items():
            schema = dict(tool.parameters)
            problem = problems_in_schema(schema)
            if problem is not None:
                raise ValueError(f"tool {name!r}: {problem}")
            self._compiled[name] = (_compile(schema), schema)

    def fit(self, tool: str, arguments: Mapping[str, Any]) -> Fitted:
        """Drop the nulls of optional arguments if the schema refuses them, and describe what else is wrong."""
        compiled = self._compiled.get(tool)
        if compiled is None:
            return Fitted(arguments)
        validator, schema = compiled
        try:
            if validator.is_valid(arguments):
                return Fitted(arguments)
            dropped = self._find_nulls(tool, validator, schema, arguments)
            fitted = without(arguments, dropped) if dropped else arguments
            if dropped and validator.is_valid(fitted):
                return Fitted(fitted, losses_of(dropped))
            problems = [_problem(error, schema, fitted) for error in _errors(validator, fitted)]
        except UnicodeError:
            problems = ["a text in them is not valid Unicode (a lone surrogate)"]
        except ValueError:
            problems = ["they are nested too deeply, or are not JSON"]
        text = _cut(f"Invalid arguments for {_quote(tool)}: {'. '.join(problems)}.", _MAX_TEXT)
        return Fitted(arguments, problem=text)

    def _find_nulls(
        self, tool: str, validator: jsonschema_rs.Validator, schema: dict[str, Any], arguments: Mapping[str, Any]
    ) -> frozenset[tuple[str | int, ...]]:
        if tool in self._keeping_nulls or not _small(arguments):
            return frozenset()
        found = find_nulls(validator.iter_errors(arguments), schema)
        # A member may be required by another part of the schema than the one that refuses its null.
        return found - missed_in(validator.iter_errors(without(arguments, found))) if found else found


class Fragment:
    """A JSON Schema over the arguments of a call, compiled once."""

    __slots__ = ("_validator", "schema")

    def __init__(self, schema: Mapping[str, Any]) -> None:
        """Compile a schema.

        Raises:
            ValueError: it is invalid; `problem_in_fragment` finds that out beforehand.
        """
        self.schema = dict(schema)
        problem = problem_in_fragment(self.schema)
        if problem is not None:
            raise ValueError(problem)
        self._validator = _compile(self.schema)

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Return whether the arguments match the schema.

        Raises:
            ValueError: the arguments cannot be compared with it; they contain e.g. a lone surrogate.
        """
        return self._validator.is_valid(arguments)


def problem_in_fragment(schema: Mapping[str, Any]) -> str | None:
    """Return why a schema over arguments cannot be compiled; None if it can."""
    try:
        _compile(dict(schema))
    except jsonschema_rs.ValidationError as exc:
        return _cut(f"not a valid JSON Schema: {_schema_fault(exc)}", _MAX_PROBLEM)
    except ValueError as exc:
        return _cut(f"not a valid JSON Schema: {exc}", _MAX_PROBLEM)
    return None


def problems_in_schema(parameters: Any) -> str | None:
    """Return why a tool's `parameters` cannot be used; None if they can."""
    if not isinstance(parameters, Mapping):
        return "parameters must be a JSON Schema object, e.g. {type: object, properties: {…}, required: […]}"
    schema: dict[str, Any] = dict(cast("Mapping[str, Any]", parameters))
    given = schema.get("type")
    if given != "object":
        said = "it has no `type`" if given is None else f"its `type` is {_show(given)}"
        return f"parameters must describe an object: {said}; write `type: object` and put the arguments in `properties`"
    return problem_in_fragment(schema)


def _compile(schema: dict[str, Any]) -> jsonschema_rs.Validator:
    # RegexOptions selects the engine that is linear in the text; the default one backtracks.
    return jsonschema_rs.validator_for(
        schema,
        retriever=_refuse,
        pattern_options=jsonschema_rs.RegexOptions(size_limit=_REGEX_BYTES, dfa_size_limit=_REGEX_BYTES),
    )


def _refuse(uri: str, /) -> NoReturn:
    raise ValueError(f"a $ref may only point inside the same schema, not to {uri!r}")


def _schema_fault(exc: jsonschema_rs.ValidationError) -> str:
    place = _pointer(exc.instance_path)
    match exc.kind.name:
        case "format":
            return (
                f"at {place}: {_show(exc.instance)} is not a usable pattern; look-around and back-references are not"
                " supported, because they can be made slow, nor are patterns of more than 1 MB when compiled"
            )
        case "anyOf" if exc.instance_path[-1:] == ["type"]:
            return f"at {place}: {_show(exc.instance)} is not a type; types are {', '.join(_TYPES)}"
        case _:
            return f"at {place}: {exc.message}"


def _errors(validator: jsonschema_rs.Validator, arguments: Any) -> Iterator[jsonschema_rs.ValidationError]:
    # The library collects every error before it hands out the first, at some 10 µs each; in a big
    # value we therefore ask for the first alone.
    if not _small(arguments):
        try:
            validator.validate(arguments)
        except jsonschema_rs.ValidationError as exc:
            yield exc
        return
    for count, error in enumerate(validator.iter_errors(arguments)):
        if count == _MAX_PROBLEMS:
            return
        yield error


def _small(value: Any) -> bool:
    waiting = [value]
    seen = 0
    while waiting:
        one = waiting.pop()
        seen += 1
        if isinstance(one, dict | list):
            members = cast("dict[Any, Any] | list[Any]", one)
            if seen + len(waiting) + len(members) > _MAX_NODES:
                return False
            waiting.extend(members.values() if isinstance(members, dict) else members)
    return True


def _problem(error: jsonschema_rs.ValidationError, schema: dict[str, Any], arguments: Any) -> str:
    kind: Any = error.kind  # the members depend on its name
    place = error.instance_path
    given = _show(_walk(arguments, place))
    holder = _walk(schema, error.schema_path[:-1])
    match kind.name:
        case "required":
            name = str(kind.property)
            text = f"missing; it is required{_about(_member(holder, name))}"
            place = [*place, name]
        case "additionalProperties" | "unevaluatedProperties" if kind.unexpected:
            place = [*place, str(kind.unexpected[0])]
            text = f"is not a known argument; known are {_options(list(_properties(holder)))}"
        case "enum":
            text = f"{given} is not allowed; allowed are {_options(kind.options)}"
        case "type":
            allowed = " or ".join(_TYPES[one] for one in kind.types)
            text = f"{given} is not allowed; it must be {allowed}"
        case "anyOf" | "oneOf":
            text = f"{given} is not allowed; it must be {_alternatives(holder, kind.name)}"
        case "uniqueItems":
            text = "has an item twice; the items must differ"
        case name if name in _LIMITS:
            text = f"{given} {_LIMITS[name].format(_json(kind.value))}"
        case name:
            text = f"{given} is not allowed by the rule {name!r} of the tool's schema"
    return _cut(f"at {_pointer(place)}: {text}", _MAX_PROBLEM)


def _walk(schema: Any, path: list[str | int]) -> Any:
    for step in path:
        match schema:
            case dict() if step in schema:
                schema = cast("dict[Any, Any]", schema)[step]
            case list() if isinstance(step, int) and step < len(cast("list[Any]", schema)):
                schema = cast("list[Any]", schema)[step]
            case _:
                return {}
    return schema


def _properties(schema: Any) -> dict[str, Any]:
    properties = _walk(schema, ["properties"])
    return cast("dict[str, Any]", properties) if isinstance(properties, dict) else {}


def _member(schema: Any, name: str) -> Any:
    return _properties(schema).get(name)


def _about(schema: Any) -> str:
    match schema:
        case {"type": str() as kind, "description": str() as description} if description:
            return f" ({kind}: {_cut(description, _MAX_POINTER)})"
        case {"type": str() as kind}:
            return f" ({kind})"
        case {"description": str() as description} if description:
            return f" ({_cut(description, _MAX_POINTER)})"
        case _:
            return ""


def _alternatives(schema: Any, name: str) -> str:
    choices = _walk(schema, [name])
    said: list[str] = []
    for choice in cast("list[Any]", choices) if isinstance(choices, list) else []:
        match choice:
            case {"const": value}:
                said.append(_json(value))
            case {"enum": options}:
                said.append(f"one of {_options(options)}")
            case {"type": str() as kind}:
                said.append(_TYPES.get(kind, kind))
            case _:
                return f"one of the {len(cast('list[Any]', choices))} forms the tool's schema describes"
    return " or ".join(dict.fromkeys(said)) or "one of the forms the tool's schema describes"


def _options(values: list[Any]) -> str:
    shown = [_json(value) for value in values[:_MAX_OPTIONS]]
    if len(values) > _MAX_OPTIONS:
        shown.append(f"… ({len(values)} in all)")
    return ", ".join(shown) or "none"


def _show(value: Any) -> str:
    """Name a given value without quoting more than a few words of it."""
    match value:
        case str():
            return _quote(value)
        case dict():
            return f"an object ({len(cast('dict[Any, Any]', value))} members)"
        case list():
            return f"an array ({len(cast('list[Any]', value))} items)"
        case _:
            return _json(value)


def _json(value: Any) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError):
        # Numbers of a schema may come back as Decimal, and an int may be too long to be written.
        text = str(value) if not isinstance(value, int) else "a number too long to show"
    return _cut(show_hidden(text), _MAX_VALUE)


def _quote(text: str) -> str:
    return repr(text) if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]!r}…"


def _pointer(path: list[str | int]) -> str:
    if not path:
        return "the top"
    steps = (_cut(str(step), _MAX_POINTER).replace("~", "~0").replace("/", "~1") for step in path)
    return _cut(show_hidden("/" + "/".join(steps)), _MAX_POINTER)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
