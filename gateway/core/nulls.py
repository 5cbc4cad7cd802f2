"""Treats null for an optional argument as an omitted argument, if the tool's schema refuses the null. Pure.

Arguments that fit the schema are never changed. In arguments that do not, a null is dropped if it is the value of an
optional member that `properties` declares and whose schema refuses null. This covers nested objects, arrays of
objects, local `$ref`, `allOf` and the branches of `anyOf` and `oneOf`: the first branch that the drops satisfy decides.
Not covered: array items, members that only `additionalProperties` or `patternProperties` describe, required members.
"""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, cast

from gateway.events import Envelope, Loss, ToolRequested
from gateway.events.frozen import frozen
from gateway.strict_json import pointer

if TYPE_CHECKING:
    import jsonschema_rs

MOST_NULLS = 100
"""Nulls of one call that are dropped; arguments with more are refused with the nulls."""
_LONGEST_STEP = 200
"""Letters of a member's name that a pointer keeps; nothing below a longer one is dropped."""
_ROOT = "/arguments"
NULL_NOTE = "null for an optional argument; the executor's request omits it"
_MOVES = frozenset(
    {
        "additionalItems", "additionalProperties", "contains", "items", "patternProperties", "prefixItems",
        "propertyNames", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
"""Keywords that lead to another value without a declared member."""

Path = tuple[str | int, ...]


@frozen
class Fitted:
    """The arguments for the executor, the dropped nulls, and the reason of a refusal, if any."""

    arguments: Mapping[str, Any]
    losses: tuple[Loss, ...] = ()
    problem: str | None = None


def find_nulls(errors: "Iterable[jsonschema_rs.ValidationError]", schema: Mapping[str, Any]) -> frozenset[Path]:
    """Find the nulls to drop among the errors of a validation; empty if there are too many."""
    found = frozenset[Path]().union(*(_nulls_of(error, schema) or () for error in errors))
    return found if len(found) <= MOST_NULLS else frozenset()


def missed_in(errors: "Iterable[jsonschema_rs.ValidationError]") -> frozenset[Path]:
    """List the members whose absence is an error."""
    return frozenset(
        (*error.instance_path, str(cast("Any", error.kind).property))
        for error in errors
        if error.kind.name == "required"
    )


def losses_of(dropped: Iterable[Path]) -> tuple[Loss, ...]:
    """Name the dropped nulls, in the order of their places."""
    places = sorted(pointer(_ROOT, *path) for path in dropped)
    return tuple(Loss(how="dropped", path=place, note=NULL_NOTE) for place in places)


def without(arguments: Mapping[str, Any], dropped: Iterable[Path]) -> dict[str, Any]:
    """Copy the arguments without the members at the paths."""
    copied: dict[str, Any] = dict(arguments)
    # Each container on the way is copied once; the arguments themselves belong to the journal.
    copies: dict[Path, Any] = {(): copied}
    for path in dropped:
        holder: Any = copied
        for depth, step in enumerate(path[:-1], 1):
            if (inner := copies.get(path[:depth])) is None:
                given = holder[step]
                inner = copies[path[:depth]] = copy(given)
                holder[step] = inner
            holder = inner
        del holder[path[-1]]
    return copied


def sent_arguments(recorded: Envelope, request: ToolRequested) -> dict[str, Any]:
    """Return the arguments of a recorded request as its executor gets them: without the nulls among its losses."""
    dropped: list[Path] = []
    for loss in recorded.losses:
        if loss.how == "dropped" and loss.note == NULL_NOTE and loss.path.startswith(f"{_ROOT}/"):
            path = _read_pointer(loss.path, request.arguments)
            if path is not None:
                dropped.append(path)
    return without(request.arguments, dropped) if dropped else request.arguments


def _read_pointer(place: str, arguments: Mapping[str, Any]) -> Path | None:
    """Follow a pointer to a null; None if there is none."""
    value: Any = arguments
    path: list[str | int] = []
    for step in place.split("/")[2:]:
        key = step.replace("~1", "/").replace("~0", "~")
        match value:
            case dict() if key in value:
                path.append(key)
                value = cast("dict[str, Any]", value)[key]
            case list() if key.isdecimal() and int(key) < len(cast("list[Any]", value)):
                path.append(int(key))
                value = cast("list[Any]", value)[int(key)]
            case _:
                return None
    return tuple(path) if value is None else None


def _nulls_of(error: "jsonschema_rs.ValidationError", schema: Mapping[str, Any]) -> frozenset[Path] | None:
    """Find the nulls whose absence would fix an error; None if none would."""
    if error.instance is None:
        path = tuple(error.instance_path)
        return frozenset({path}) if _is_optional(path, error.evaluation_path, schema) else None
    branches = cast("Sequence[Sequence[Any]]", getattr(error.kind, "context", ()))
    for branch in branches:
        found = [_nulls_of(one, schema) for one in branch]
        if all(one is not None for one in found):
            return frozenset[Path]().union(*(one for one in found if one is not None))
    return None


def _is_optional(path: Path, keywords: Sequence[str | int], schema: Mapping[str, Any]) -> bool:
    """Whether a path ends at a member that `properties` declares and `required` does not name."""
    if not path or any(len(str(step)) > _LONGEST_STEP for step in path):
        return False
    at: Any = schema
    name: object = None
    required: Any = ()
    steps = iter(keywords)
    try:
        for step in steps:
            if step == "$ref":
                at = _resolve(schema, at["$ref"])
            elif step == "properties":
                name, required = next(steps), at.get("required", ())
                at = at["properties"][name]
            else:
                name = None if step in _MOVES else name
                at = at[step]
    except (KeyError, IndexError, TypeError, StopIteration):
        return False
    return name == path[-1] and name not in required


def _resolve(schema: Mapping[str, Any], ref: str) -> Any:
    at: Any = schema
    if not ref.startswith("#"):
        raise KeyError(ref)
    for step in ref.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        at = at[key if isinstance(at, dict) else int(key)]
    return at
