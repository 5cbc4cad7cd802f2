"""Converts the outcome of a call to the text that Herm shows to the model. Pure."""

import orjson

from adapters.herm.wrapping import dropped
from gateway.adapter.checks import check_json, check_text
from gateway.events import ContextUpdate, Loss, ToolFinished
from gateway.events.frozen import frozen

NOTHING = "The tool finished without a result."
_DEFAULT_ERRORS = {
    "failure": "The tool failed.",
    "expired": "The tool did not answer in time.",
    "canceled": "The call was canceled.",
}


@frozen
class OutcomeText:
    """An outcome as text, and the path of its source in the event."""

    text: str
    failed: bool
    path: str
    losses: tuple[Loss, ...]


def outcome_text(event: ToolFinished, written: bytes | None) -> OutcomeText:
    """Convert a text result unchanged and other results to compact JSON; any outcome but success is an error.

    `written` is the result's JSON, if it has been checked.

    Raises:
        CannotExpress: the result is not JSON, or a text has a lone surrogate.
    """
    losses: tuple[Loss, ...] = ()
    if event.context is not None or event.unknown:
        losses = dropped(("context", event.context), ("unknown", event.unknown or None))
    if event.outcome == "success":
        if event.error is not None:
            losses += dropped(("error", event.error))
        if event.result is None or event.result == "":
            # Herm requires a block, and may refuse an empty text.
            losses += (Loss(how="invented", path="/result", note="a result requires a text"),)
            return OutcomeText(NOTHING, failed=False, path="/result", losses=losses)
        if written is None:
            check_json(event.result, "/result")
        text = event.result if isinstance(event.result, str) else (written or orjson.dumps(event.result)).decode()
        return OutcomeText(text, failed=False, path="/result", losses=losses)
    losses += dropped(("result", event.result))
    if event.outcome != "failure":
        losses += (Loss(how="narrowed", path="/outcome", note="sent as a failure"),)
    if not event.error:
        losses += (Loss(how="invented", path="/error", note="a failure requires an error text"),)
    text = event.error or _DEFAULT_ERRORS[event.outcome]
    check_text(text, "/error")
    return OutcomeText(text, failed=True, path="/error", losses=losses)


def updates_text(updates: tuple[ContextUpdate, ...]) -> str:
    """Convert updates to text, for a runtime without contexts.

    Raises:
        CannotExpress: a context is not JSON, or a text has a lone surrogate.
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
