"""Says the outcome of a call as the text that Herm shows to the model. Pure."""

import orjson

from adapters.herm.wrapping import dropped
from gateway.adapter.checks import check_json, check_text
from gateway.events import ContextUpdate, Loss, ToolFinished
from gateway.events.frozen import frozen

NOTHING = "The tool finished without a result."
_WITHOUT_WORDS = {
    "failure": "The tool failed.",
    "expired": "The tool did not answer in time.",
    "canceled": "The call was canceled.",
}


@frozen
class OutcomeText:
    """An outcome in words, and where in the event they stand."""

    text: str
    failed: bool
    path: str
    losses: tuple[Loss, ...]


def outcome_text(event: ToolFinished, written: bytes | None) -> OutcomeText:
    """Say a result as it is where it is text, otherwise as compact JSON; anything but a success as an error.

    `written` is the result's JSON, where somebody has looked through it already.

    Raises:
        CannotExpress: the result is not JSON, or a text holds a lone surrogate.
    """
    losses: tuple[Loss, ...] = ()
    if event.context is not None or event.unknown:
        losses = dropped(("context", event.context), ("unknown", event.unknown or None))
    if event.outcome == "success":
        if event.error is not None:
            losses += dropped(("error", event.error))
        if event.result is None or event.result == "":
            # At least one block is needed, and an empty text may not be allowed.
            losses += (Loss(how="invented", path="/result", note="a result has a text"),)
            return OutcomeText(NOTHING, failed=False, path="/result", losses=losses)
        if written is None:
            check_json(event.result, "/result")
        text = event.result if isinstance(event.result, str) else (written or orjson.dumps(event.result)).decode()
        return OutcomeText(text, failed=False, path="/result", losses=losses)
    losses += dropped(("result", event.result))
    if event.outcome != "failure":
        losses += (Loss(how="narrowed", path="/outcome", note="told as a failure"),)
    if not event.error:
        losses += (Loss(how="invented", path="/error", note="a failure has an error text"),)
    text = event.error or _WITHOUT_WORDS[event.outcome]
    check_text(text, "/error")
    return OutcomeText(text, failed=True, path="/error", losses=losses)


def updates_text(updates: tuple[ContextUpdate, ...]) -> str:
    """Say fresh state in words, for a runtime that has no context of its own.

    Raises:
        CannotExpress: a context is not JSON, or a text holds a lone surrogate.
    """
    parts: list[str] = []
    for place, update in enumerate(updates):
        where = f"/updates/{place}"
        check_text(update.name, f"{where}/name")
        check_text(update.description, f"{where}/description")
        check_json(update.context, f"{where}/context")
        head = f"[{update.name}] {update.description}".strip()
        parts.append(f"{head}\n{orjson.dumps(update.context).decode()}" if update.context else head)
    return "\n\n".join(parts)
