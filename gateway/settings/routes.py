"""The sections of the YAML about routes and approvals. Pure."""

from datetime import timedelta
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, WithJsonSchema
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from gateway.core.arguments import problem_in_fragment
from gateway.settings.section import Name, Patience, Section, one_or_more


def _usable(schema: dict[str, Any] | None) -> dict[str, Any] | None:
    if schema is not None and (problem := problem_in_fragment(schema)) is not None:
        raise ValueError(problem)
    return schema


def _anyone(given: object) -> object:
    # The value of a `${VAR}` is a text.
    if not isinstance(given, bool | str):
        return given
    choices: dict[object, object] = {True: {}, "true": {}, False: None, "false": None}
    return choices.get(given, given)


class _OrBoolean:
    """Adds `true` and `false` to a section in the JSON Schema."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "boolean"}, handler(core)]}


Names = Annotated[
    tuple[str, ...],
    BeforeValidator(one_or_more),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
"""One name or a list."""


class MatchSpec(Section):
    """The filter of a route; everything given must match."""

    runtime: str = "*"
    """Glob over runtime names."""
    tool: str | None = None
    """Glob over tool names; matches calls."""
    event: str | None = None
    """Glob over event kinds, e.g. `message.posted`, `approval.asked`."""
    label: dict[str, str] = {}
    """Session labels that must all match (globs)."""
    arguments: Annotated[dict[str, Any] | None, AfterValidator(_usable)] = None
    """A JSON Schema that the arguments of a call must match; by default, any do."""


class ApproveSpec(Section):
    """Who may allow a held call, and how long it waits."""

    by: Names = ()
    """The names of the API keys that may allow it; by default, each key with the scope `approve`."""
    timeout: Patience | None = None
    """How long the call waits; by default `approvals.timeout`."""


class RouteSpec(Section):
    """One rule: sends matching events to an executor, or copies them to destinations."""

    match: MatchSpec = MatchSpec()
    """The filter; by default, everything matches."""
    to: str | None = None
    """The executor that answers."""
    approve: Annotated[
        Annotated[ApproveSpec, _OrBoolean()] | None,
        BeforeValidator(_anyone),
    ] = None
    """Whether matching calls wait until a human allows them; `true`, or who may allow them and how long they wait."""
    deny: Annotated[str, Field(min_length=1, max_length=2_000)] | None = None
    """Denies matching calls, whatever the other routes say; the agent gets this text."""
    copy_to: Names = ()
    """The destinations that get a copy; one name or a list."""
    live: bool = False
    """Whether `copy_to` also sends matching live events, such as `typing.changed`: once, without retries."""
    held: bool = False
    """Whether `to` also answers the approvals of held calls; only with `event: approval.asked`."""
    undeclared: bool = False
    """Whether a glob also routes tools that are missing from a non-empty `tools`."""


class NotifySpec(Section):
    """A destination that gets notices about held calls."""

    to: Name
    """The destination."""
    arguments: bool = False
    """Whether the notices contain the arguments of the call and the labels of its session."""


def _to_each(given: object) -> object:
    each = cast("list[object]", given if isinstance(given, list | tuple) else [given])
    return [{"to": one} if isinstance(one, str) else one for one in each]


class _OrNames:
    """Adds names, and one section without a list, to a list of sections in the JSON Schema."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema, name = handler(core), {"type": "string"}
        one = {"anyOf": [name, schema["items"]]}
        return {"anyOf": [*one["anyOf"], {**schema, "items": one}]}


class _OneOrMore:
    """Adds a single item to a list in the JSON Schema."""

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler(core)
        return {"anyOf": [schema["items"], schema]}


class ApprovalsSpec(Section):
    """Calls that wait for a human, because their route has `approve`."""

    timeout: Patience = timedelta(minutes=15)
    """The time to answer; afterwards the call expires, with a text for the agent."""
    notify: Annotated[tuple[NotifySpec, ...], _OrNames(), BeforeValidator(_to_each)] = ()
    """The destinations that get a notice when a call is held, and when its question ends: names, or `{to: NAME,
    arguments: true}`."""
    remind: Annotated[tuple[Patience, ...], BeforeValidator(one_or_more), Field(max_length=10), _OneOrMore()] = ()
    """When the notice is sent again while nobody has answered, counted from the time at which the call was held."""
    links: bool = False
    """Whether notices contain a link, which answers without a key, instead of the address of the inbox."""
    tell: bool = True
    """Whether the conversation is told, once and as a message, of an outcome that an agent has not fetched with
    get_result within two minutes after the end of its call."""
    while_held: Literal["deliver", "queue"] = "deliver"
    """What happens to messages that would wake the agent while a call of its session waits: deliver sends them, queue
    keeps them until the call has been answered."""
