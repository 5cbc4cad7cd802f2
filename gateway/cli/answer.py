"""Answers a question to a person: as options say, or as somebody says who is asked in a terminal."""

import getpass
import re
import sys
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from gateway.cli.client import ApiClient
from gateway.cli.faults import Misused, Refusal
from gateway.cli.lines import clean
from gateway.cli.send import MOST_BYTES, read_text, say_losses
from gateway.cli.terminal import Output, complain, note, say_json
from gateway.cli.waiting import SHORTEST, Waiting, rows_of, show_one, waiting
from gateway.errors import OperatorError

_WHOLE = re.compile(r"[0-9A-Za-z-]{32,64}")
"""An id, and no beginning of one: what became of it the gateway knows."""
_MOST_AT_A_PROMPT = 20
_FORMS = "--allow, --deny, --text or --secret"
_TAKES = {
    "approval.asked": ("decision", "an approval takes --allow or --deny"),
    "question.asked": ("answer", "a question takes --text"),
    "secret.asked": ("value", "a secret takes --secret"),
}
"""What an answer of each kind has in it, and how options say it."""


def body_of(*, allow: bool, deny: bool, scope: str | None, text: str | None, secret: bool) -> dict[str, Any] | None:
    """Make the answer that options say, None where they say none; a secret is asked for without showing it.

    Raises:
        Misused: they do not go together. OperatorError: no secret was given.
    """
    given = allow + deny + (text is not None) + secret
    if given > 1:
        raise Misused(f"give exactly one of {_FORMS}")
    if scope is not None and not (allow or deny):
        raise Misused("--scope belongs to --allow or --deny")
    if not given:
        return None
    if secret:
        return {"value": _ask_secret()}
    if text is not None:
        return {"answer": read_text(text)}
    return _decision("allow" if allow else "deny", scope)


def answer(api: ApiClient, given: str | None, body: dict[str, Any] | None, *, as_json: bool) -> None:
    """Give the answer, or ask for it.

    Raises:
        Misused: nobody can be asked. Refusal: two are meant, or it does not wait any more.
    """
    if body is None and not _somebody_is_there():
        raise Misused(
            f"without a terminal, say which and what: `dragoman answer ID` with one of {_FORMS}; "
            "`dragoman inbox` lists what waits"
        )
    if given is None:
        assert body is None, "what is answered without a name is answered at a prompt"
        _ask_about_all(api, as_json=as_json)
        return
    found = find(api, given)
    if body is not None:
        _check_form(found, body)
        _give(api, found if isinstance(found, str) else found.id, body, as_json=as_json)
    elif isinstance(found, str):
        raise _none(given)
    else:
        show_one(found, _prompts(), name=found.short)
        _ask_about(api, found, as_json=as_json)


def find(api: ApiClient, given: str) -> Waiting | str:
    """Find what waits under an id, or under the first letters of one; a whole id itself where it does not wait.

    Raises:
        Misused: it is too short to be sure of. Refusal: two begin so, or none.
    """
    rows = list(rows_of(api))
    exact = [row for row in rows if row["interaction_id"] == given]
    if not exact and len(given) < SHORTEST:
        raise Misused(
            f"{given!r} is too short: give at least the first {SHORTEST} letters of an id, as `dragoman inbox` shows "
            "them; a number is good only at the prompt that shows it"
        )
    found = waiting(api, exact or [row for row in rows if str(row["interaction_id"]).startswith(given)])
    if len(found) > 1:
        told = "\n  ".join(f"{clean(one.id)}  {clean(one.kind)}  {clean(one.session)}" for one in found[:10])
        raise Refusal(f"{len(found)} questions that wait begin with {given!r}: give more letters", told)
    if not found and not _WHOLE.fullmatch(given):
        raise _none(given)
    return found[0] if found else given


def _check_form(one: Waiting | str, body: dict[str, Any]) -> None:
    """Refuse in the words of the command what the gateway would refuse in those of its API."""
    if isinstance(one, str) or one.kind not in _TAKES:
        return
    member, takes = _TAKES[one.kind]
    if member not in body:
        raise Refusal(f"{takes}, so nothing was sent", f"dragoman answer {clean(one.short)} {one.how}")


def _none(given: str) -> Refusal:
    return Refusal(f"no question {clean(given, 80)!r} waits for an answer", "`dragoman inbox` lists what waits")


def _give(api: ApiClient, interaction: str, body: dict[str, Any], *, as_json: bool) -> None:
    try:
        row = api.post(f"/v1/interactions/{quote(interaction, safe='')}/answer", body)
    except Refusal as exc:
        if exc.problem in {"not-found", "conflict"}:
            exc.mend = "`dragoman inbox` lists what waits"
        raise
    if as_json:
        say_json(row)
    else:
        Output().say(f"{clean(row['state'])}: {clean(row['kind'])} {clean(row['interaction_id'])}")
        say_losses(row.get("losses", ()))


def _ask_about_all(api: ApiClient, *, as_json: bool) -> None:
    """Show what waits under numbers, and ask, until nothing waits or nobody wants to go on."""
    out = _prompts()
    while True:
        found = waiting(api, rows_of(api))
        if not found:
            note("nothing waits for an answer")
            return
        shown = found[:_MOST_AT_A_PROMPT]
        for number, one in enumerate(shown, 1):
            show_one(one, out, name=str(number))
        if len(found) > len(shown):
            note(f"{len(found) - len(shown)} more wait")
        chosen = _choose(shown)
        if chosen is None:
            return
        try:
            _ask_about(api, chosen, as_json=as_json)
        except Refusal as exc:
            if exc.passing:
                raise
            # It was answered or has expired meanwhile, which the next list shows.
            complain(str(exc))


def _choose(shown: Sequence[Waiting]) -> Waiting | None:
    """Ask which one: by a number of the list above, or by the first letters of its id."""
    while True:
        said = _ask(f"Answer which? (1{f' to {len(shown)}' if len(shown) > 1 else ''}; Enter ends): ")
        if not said:
            return None
        if said.isdecimal() and said.isascii() and len(said) < SHORTEST:
            if 1 <= int(said) <= len(shown):
                return shown[int(said) - 1]
        elif len(said) >= SHORTEST:
            meant = [one for one in shown if one.id.startswith(said)]
            if len(meant) == 1:
                return meant[0]
        note(f"{clean(said, 40)!r} is none of them")


def _ask_about(api: ApiClient, one: Waiting, *, as_json: bool) -> None:
    """Ask for the answer to one question; an empty line leaves it as it is."""
    match one.kind:
        case "approval.asked":
            body = _ask_decision(one)
        case "question.asked":
            body = _ask_text(one)
        case "secret.asked":
            value = getpass.getpass("Secret (not shown; Enter leaves it): ")
            body = {"value": value} if value else None
        case _:
            raise Refusal(
                f"this command knows no answer to {clean(one.kind, 40)!r}", "POST /v1/interactions/{id}/answer"
            )
    if body is None:
        note("left as it is")
    else:
        _give(api, one.id, body, as_json=as_json)


def _ask_decision(one: Waiting) -> dict[str, Any] | None:
    decision = _ask_one_of("allow or deny? (Enter leaves it): ", ("allow", "deny"))
    if decision is None:
        return None
    if len(one.scopes) < 2:
        return _decision(decision, None)
    least = one.scopes[0]
    scope = _ask_one_of(f"for how long? {', '.join(one.scopes)} (Enter: {least}): ", one.scopes)
    return _decision(decision, scope or least)


def _ask_one_of(question: str, words: Sequence[str]) -> str | None:
    """Ask for one of some words, or the first letters of one; None for an empty line."""
    while said := _ask(question):
        meant = [word for word in words if word.startswith(said.lower())]
        if len(meant) == 1:
            return meant[0]
        note(f"say {' or '.join(words)}")
    return None


def _ask_text(one: Waiting) -> dict[str, Any] | None:
    choices = [str(choice) for choice in one.event.get("choices") or ()]
    out = _prompts()
    for number, choice in enumerate(choices, 1):
        out.say(f"    {number}  {clean(choice)}")
    numbers = "a number, or " if choices else ""
    said = _ask(f"Answer ({numbers}a text; - skips the question, Enter leaves it): ")
    if not said:
        return None
    if said == "-":
        return {"answer": ""}
    by_number = said.isdecimal() and said.isascii() and said not in choices and 1 <= int(said[:9]) <= len(choices)
    return {"answer": choices[int(said) - 1] if by_number else said}


def _decision(decision: str, scope: str | None) -> dict[str, Any]:
    return {"decision": decision} | ({} if scope is None else {"scope": scope})


def _ask_secret() -> str:
    if sys.stdin.isatty():
        value = getpass.getpass("Secret (not shown): ")
    else:
        value = sys.stdin.readline(MOST_BYTES).rstrip("\r\n")
    if not value:
        raise OperatorError("no secret was given, so nothing was sent")
    return value


def _ask(question: str) -> str:
    """Ask on stderr, so that stdout holds answers only; the end of the input is an empty line."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = ""
    try:
        line = sys.stdin.readline(MOST_BYTES)
    finally:
        if not line:
            sys.stderr.write("\n")
    return line.strip()


def _somebody_is_there() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _prompts() -> Output:
    return Output(stderr=True)
