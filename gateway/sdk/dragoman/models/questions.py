"""The events with which a person is asked, and those with the answers. Pure."""

from typing import Any, Literal

from pydantic import SecretStr

from dragoman.models.content import Value

Scope = Literal["once", "session", "always"]
Decision = Literal["allow", "deny"]


class ApprovalAsked(Value):
    """← A person must allow or deny an action."""

    kind: Literal["approval.asked"] = "approval.asked"
    """The kind of event."""
    id: str
    """The runtime's id of the question."""
    native_call_id: str | None = None
    """The runtime's own id of the call."""
    tool: str | None = None
    """The tool's name."""
    arguments: dict[str, Any] = {}
    """The arguments of the call."""
    scopes: tuple[Scope, ...] = ("once",)
    """The scopes that an approval may have."""
    call_id: str | None = None
    """The gateway's id of the held call; only if the gateway asks."""
    rule: str | None = None
    """The place in the configuration of the route that holds the call, such as `routes[2]`."""
    rule_sha: str | None = None
    """The hash of that route, which is part of the binding."""
    binding: str | None = None
    """The hash of what a person allows."""
    edited: bool | None = None
    """True if a person has changed the arguments before."""
    warning: str | None = None
    """What a person must know before they answer: the call may have run after the backup that was restored."""


class ApprovalGiven(Value):
    """→ The response to an `approval.asked`."""

    kind: Literal["approval.given"] = "approval.given"
    """The kind of event."""
    id: str
    """The id of the `approval.asked`."""
    native_call_id: str | None = None
    """The runtime's own id of the call."""
    decision: Decision
    """Whether the action is allowed."""
    scope: Scope | None = None
    """The scope of the approval."""
    reason: str | None = None
    """Text for the agent."""
    call_id: str | None = None
    """The gateway's id of the held call; clients set neither this nor the members below."""
    arguments: dict[str, Any] | None = None
    """The arguments that the person allows; the executor gets these."""
    binding: str | None = None
    """The hash of what the person allows."""
    rule_sha: str | None = None
    """The hash of the route that the call takes, which is part of the binding."""
    edited: bool | None = None
    """True if a person has changed the arguments."""
    by: str | None = None
    """Who has answered."""


class QuestionAsked(Value):
    """← The agent asks a person a question."""

    kind: Literal["question.asked"] = "question.asked"
    """The kind of event."""
    id: str
    """The runtime's id of the question."""
    text: str
    """The question."""
    choices: tuple[str, ...] = ()
    """The permitted answers; empty if any answer is permitted."""


class QuestionAnswered(Value):
    """→ The answer to a `question.asked`."""

    kind: Literal["question.answered"] = "question.answered"
    """The kind of event."""
    id: str
    """The id of the `question.asked`."""
    answer: str
    """The answer; an empty one skips the question."""


class SecretAsked(Value):
    """← The agent requests a password or secret value."""

    kind: Literal["secret.asked"] = "secret.asked"
    """The kind of event."""
    id: str
    """The runtime's id of the question."""
    purpose: Literal["sudo", "secret"]
    """The purpose."""
    prompt: str | None = None
    """The text to show to a person."""
    name: str | None = None
    """The name of the secret."""


class SecretSupplied(Value):
    """→ A password or secret value; it is kept only in memory and dumped as asterisks."""

    kind: Literal["secret.supplied"] = "secret.supplied"
    """The kind of event."""
    id: str
    """The id of the `secret.asked`."""
    purpose: Literal["sudo", "secret"] = "secret"
    """The purpose."""
    value: SecretStr
    """The secret."""

    def reveal(self) -> str:
        """Return the plain value.

        Raises:
            ValueError: this event was read from the journal, which stores only asterisks.
        """
        value = self.value.get_secret_value()
        if value and not value.strip("*"):
            raise ValueError("the secret was not stored and cannot be sent again")
        return value
