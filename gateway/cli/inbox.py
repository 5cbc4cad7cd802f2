"""`dragoman inbox` and `dragoman answer`: requests that are waiting for a human."""

import getpass
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from gateway.cli.completion import complete_interaction
from gateway.cli.errors import Misused, Refusal
from gateway.cli.help import SHORT_IDS, examples
from gateway.cli.inputs import MOST_BYTES, parse_object, read_source, read_text
from gateway.cli.lines import clean, compact, facts_of
from gateway.cli.options import KEY, LIMIT, SESSION, URL, YES, JsonOption, RowsOption, argument, flag, option
from gateway.cli.send import show_losses
from gateway.cli.terminal import SHORT, Output, age_of, complain, note, say_json, to_row
from gateway.core.holding import asked_again
from gateway.errors import OperatorError
from gateway.visible import LONGEST_DECISION, length_of

if TYPE_CHECKING:
    from dragoman.client import Interaction
    from gateway.cli.connection import GatewayConnection

_WHOLE = re.compile(r"[0-9A-Za-z-]{32,64}")
_MOST_WAITING = 20_000
_MOST_NAMES = 50
_SHOWN = 500
"""How much of each part of a request is shown that is too long for a decision."""
_LONGEST_REASON = 2_000
_FORMS = "--allow, --deny, --text or --secret"
_LISTS = "`dragoman inbox` lists the waiting requests"


_OPTIONS = {
    "approval.asked": "--allow | --deny{scopes}",
    "question.asked": "--text TEXT",
    "secret.asked": "--secret",
}
"""The options of `answer`, by kind."""

INTERACTION = argument(
    "INTERACTION",
    "ID of the request, or a prefix of it; without one, prompts for each.",
    default=None,
    autocompletion=complete_interaction,
)

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman inbox",
        "dragoman inbox --session finn/agent-7",
        "dragoman inbox --json | jq -r .interaction_id",
        more="To answer the requests one by one, run `dragoman answer`.\n"
        "When piped, prints tab-separated rows: ID, kind, session, expiry, request, rule and binding.",
    )
)
def inbox(
    *,
    session: str | None = SESSION,
    limit: int = LIMIT,
    as_json: RowsOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """List requests that are waiting for a human."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        of = None if session is None else gateway.find_session(session)
        rows, more = gateway.take(gateway.client.interactions(session=of, state="waiting"), limit)
        if as_json:
            for row in rows:
                say_json(to_row(row))
        else:
            _show_questions(_name_questions(gateway, rows))
        if more:
            note("there are more; raise --limit to see them")


@commands.command(
    epilog=examples(
        "dragoman answer                          prompts for each request",
        "dragoman answer b1d5781e --allow --scope session",
        "dragoman answer b1d5781e --deny --reason 'ask Victoria first'",
        "dragoman answer b1d5781e --allow --yes --binding HASH",
        """dragoman answer b1d5781e --allow --arguments '{"amount": 50}'""",
        "dragoman answer b1d5781e --text 'the blue one'",
        "dragoman answer b1d5781e --secret        prompts without echo",
        "pass show db | dragoman answer b1d5781e --secret",
        more=f"{_LISTS}. Prompts for missing values in a terminal.\n"
        "To allow a held call, it shows the call and asks; --yes does not, and needs the --binding of what you saw.\n"
        f"{SHORT_IDS}",
    )
)
def answer(
    interaction: str | None = INTERACTION,
    *,
    allow: bool = flag("--allow", "Approve the request."),
    deny: bool = flag("--deny", "Deny the request."),
    scope: str | None = option("--scope", "SCOPE", "Scope of the decision: once, session or always, if offered."),
    reason: str | None = option("--reason", "TEXT", "Reason of the decision, for the agent; - reads stdin."),
    binding: str | None = option("--binding", "HASH", "What is allowed: the binding that `dragoman inbox` shows."),
    arguments: str | None = option(
        "--arguments", "FILE|JSON", "Allow a held call with these arguments instead; - reads stdin."
    ),
    yes: bool = YES,
    text: str | None = option("--text", "TEXT", "Answer a question; '' skips it, - reads stdin."),
    secret: bool = flag("--secret", "Supply a secret: prompts in a terminal, otherwise reads one line of stdin."),
    as_json: JsonOption = False,
    url: str = URL,
    key: str | None = KEY,
) -> None:
    """Answer an agent's request."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        if interaction is None and (allow or deny or secret or scope is not None or text is not None):
            raise Misused(f"pass the ID of the request; {_LISTS}")
        body = _read_answer(allow=allow, deny=deny, scope=scope, reason=reason, text=text, secret=secret)
        if body is None and (binding is not None or arguments is not None or yes):
            raise Misused("--binding, --arguments and --yes require --allow")
        body = _read_approval(body, binding=binding, arguments=arguments, yes=yes)
        if body is None and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise Misused(
                f"without a terminal, pass the ID and the answer: `dragoman answer ID` with one of {_FORMS}; {_LISTS}"
            )
        if interaction is None:
            _ask_about_all(gateway, as_json=as_json)
            return
        found = _find_question(gateway, interaction)
        if body is not None:
            if isinstance(found, WaitingQuestion) and found.is_held and body.get("decision") == "allow" and not yes:
                body = _confirm_call(gateway, found, body)
            if body is not None:
                _give_answer(gateway, found, body, as_json=as_json)
        elif isinstance(found, str):
            raise Refusal(f"no waiting request {clean(found, 80)!r}", _LISTS)
        else:
            found.show(Output(stderr=True))
            _ask_about(gateway, found, as_json=as_json)


@dataclass(frozen=True, slots=True)
class WaitingQuestion:
    """One waiting request."""

    row: "Interaction"
    session: str
    """The session's name, as commands accept it."""

    @property
    def event(self) -> Mapping[str, Any]:
        """The event that asks."""
        return to_row(self.row).get("event") or {}

    @property
    def short(self) -> str:
        """The abbreviated ID."""
        return clean(self.row.interaction_id[:SHORT])

    @property
    def is_held(self) -> bool:
        """Whether it is about a held call."""
        return self.row.call_id is not None

    @property
    def scopes(self) -> Sequence[str]:
        """The scopes that a decision may have."""
        return [clean(scope, 40) for scope in self.event.get("scopes") or ("once",)]

    @property
    def options(self) -> str:
        """The options of `answer` for this kind."""
        scopes = f" [--scope {' | '.join(self.scopes)}]" if len(self.scopes) > 1 else ""
        return _OPTIONS.get(self.row.kind, "").format(scopes=scopes) + (" [--reason TEXT]" if self.is_held else "")

    @property
    def is_whole(self) -> bool:
        """Whether `show` prints all of it."""
        return length_of(self.event) <= LONGEST_DECISION

    @property
    def facts(self) -> Text:
        """All of the request, since a human decides about it; a cut one says so."""
        if self.is_whole:
            # An escape of a hidden character is longer than the character.
            return facts_of(dict(self.event), 10 * LONGEST_DECISION)
        cut = f"only the beginning of {length_of(self.event):,} characters; its page in the UI shows all of it"
        return Text.assemble(facts_of(dict(self.event), _SHOWN), (f"  [{cut}]", "yellow"))

    def show(self, out: Output) -> None:
        """Print it."""
        time_left = "" if self.row.expires_at is None else f"  {_remaining(self.row.expires_at)} left"
        kind = (clean(self.row.kind, 40), "yellow")
        out.say(Text.assemble((self.short, "bold"), "  ", kind, f"  {clean(self.session, 200)}{time_left}"))
        out.say(Text.assemble("    ", self.facts))
        if self.is_held:
            asked = "" if self.row.asked_at is None else f"  asked {age_of(self.row.asked_at)}"
            again = f"  {asked_again(self.row.asked_before)}" if self.row.asked_before else ""
            unheard = self.row.unheard_since
            listens = "" if unheard is None else f"  its caller last waited {age_of(unheard)}"
            held = Text(f"    held by {clean(self.row.rule or '?', 80)}{asked}{listens}", "dim")
            out.say(Text.assemble(held, (again, "yellow"), (f"\n    {self.bound}", "dim")))

    @property
    def bound(self) -> str:
        """The binding, as an option of `answer`."""
        return f"--binding {clean(self.row.binding or '', 64)}"


def _remaining(moment: datetime) -> str:
    minutes, rest = divmod(max(int((moment - datetime.now(UTC)).total_seconds()), 0), 60)
    return f"{minutes}m {rest:02}s"


def _name_questions(gateway: "GatewayConnection", rows: Sequence["Interaction"]) -> list[WaitingQuestion]:
    """Look up the session names of the rows."""
    from dragoman.client import RequestRefused
    from gateway.cli.connection import name_session

    names: dict[str, str] = {}
    for row in rows:
        if row.session_id not in names and len(names) < _MOST_NAMES:
            try:
                names[row.session_id] = name_session(gateway.run(gateway.client.session(row.session_id)))
            except RequestRefused as exc:
                if exc.type != "not-found":
                    raise
                # Retention has removed the session in the meantime.
                names[row.session_id] = row.session_id
    return [WaitingQuestion(row, names.get(row.session_id, row.session_id)) for row in rows]


def _show_questions(found: Sequence[WaitingQuestion]) -> None:
    out = Output()
    for one in found:
        if out.is_terminal:
            one.show(out)
            out.say(Text(f"    dragoman answer {one.short} {one.options}", "dim"))
        else:
            until = one.row.expires_at.isoformat() if one.row.expires_at else ""
            cells = (one.row.interaction_id, one.row.kind, one.session, until)
            bound = (one.row.rule or "", one.row.binding or "")
            typer.echo("\t".join([*map(clean, cells), one.facts.plain, *map(clean, bound)]))
    if not found:
        note("no waiting requests")


def _find_question(gateway: "GatewayConnection", given: str) -> WaitingQuestion | str:
    """Find a waiting request by its ID or a prefix; return a complete ID unchanged if it is not waiting."""
    from gateway.cli.connection import match_id

    rows, _ = gateway.take(gateway.client.interactions(state="waiting"), _MOST_WAITING)
    known = {row.interaction_id: row for row in rows}
    if given not in known and _WHOLE.fullmatch(given):
        return given
    whole = given
    if given not in known:
        named = [(one, f"{row.kind}  {row.session_id}") for one, row in known.items()]
        whole = match_id(given, lambda: named, noun="waiting request", listing="dragoman inbox")
    return _name_questions(gateway, [known[whole]])[0]


def _read_answer(
    *, allow: bool, deny: bool, scope: str | None, reason: str | None, text: str | None, secret: bool
) -> dict[str, Any] | None:
    """Make the answer from the options, or return None; prompts for a secret without echoing it."""
    given = allow + deny + (text is not None) + secret
    if given > 1:
        raise Misused(f"pass exactly one of {_FORMS}")
    for name, value in (("--scope", scope), ("--reason", reason)):
        if value is not None and not (allow or deny):
            raise Misused(f"{name} requires --allow or --deny")
    if not given:
        return None
    if secret:
        terminal = sys.stdin.isatty()
        value = getpass.getpass("Secret (not shown): ") if terminal else sys.stdin.readline(MOST_BYTES).rstrip("\r\n")
        if not value:
            raise OperatorError("the secret is empty; nothing was sent")
        return {"value": value}
    if text is not None:
        return {"answer": read_text(text)}
    more = {"scope": scope, "reason": None if reason is None else read_text(reason)}
    return {"decision": "allow" if allow else "deny", **{name: said for name, said in more.items() if said is not None}}


def _read_approval(
    body: dict[str, Any] | None, *, binding: str | None, arguments: str | None, yes: bool
) -> dict[str, Any] | None:
    """Add to the answer what an approval of a held call needs."""
    if body is None:
        return None
    if (binding is not None or arguments is not None or yes) and body.get("decision") != "allow":
        raise Misused("--binding, --arguments and --yes require --allow")
    if yes and binding is None:
        raise Misused(f"--yes requires the --binding of what you allow; {_LISTS} with it")
    changed = None if arguments is None else parse_object(_text_of(arguments), "--arguments")
    more = {"binding": binding, "arguments": changed}
    return body | {name: said for name, said in more.items() if said is not None}


def _text_of(arguments: str) -> str:
    if arguments.lstrip().startswith("{"):
        return arguments
    try:
        return read_source(arguments).decode(errors="surrogateescape")
    except OSError as exc:
        raise Misused(
            f"--arguments: {clean(arguments, 200)} is neither a JSON object nor a file: {exc.strerror}"
        ) from exc


def _confirm_call(gateway: "GatewayConnection", one: WaitingQuestion, body: dict[str, Any]) -> dict[str, Any] | None:
    """Show a held call and prompt; return the answer with the binding of what was shown, or None."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Misused(f"without a terminal, a held call is allowed with --yes and --binding; {_LISTS} with it")
    _check_whole(gateway, one)
    out = Output(stderr=True)
    one.show(out)
    if body.get("binding") not in {None, one.row.binding}:
        raise Refusal("the --binding is not that of this request", "read what is asked now, and decide again")
    if "arguments" in body:
        out.say(Text.assemble("    with ", (compact(body["arguments"], 10 * LONGEST_DECISION), "bold")))
    if _ask_one_of("allow this call? yes or no (Enter leaves it waiting): ", ("yes", "no")) != "yes":
        note("still waiting")
        return None
    return {**body, "binding": one.row.binding}


def _give_answer(
    gateway: "GatewayConnection", found: WaitingQuestion | str, body: dict[str, Any], *, as_json: bool
) -> None:
    from dragoman.client import RequestRefused
    from gateway.cli.connection import describe_refusal

    try:
        interaction = found if isinstance(found, str) else found.row.interaction_id
        row = gateway.run(gateway.client.answer(interaction, **body))
    except RequestRefused as exc:
        if exc.type in {"not-found", "conflict"}:
            raise Refusal(describe_refusal(exc), _LISTS) from exc
        if isinstance(found, WaitingQuestion):
            raise Refusal(describe_refusal(exc), f"dragoman answer {found.short} {found.options}") from exc
        raise
    if as_json:
        say_json(to_row(row))
    else:
        Output().say(f"{clean(row.state)}: {clean(row.kind)} {clean(row.interaction_id)}")
        show_losses(row.losses)


def _ask_about_all(gateway: "GatewayConnection", *, as_json: bool) -> None:
    """Show each request and prompt for its answer; an empty line leaves it waiting."""
    rows, _ = gateway.take(gateway.client.interactions(state="waiting"), _MOST_WAITING)
    for one in _name_questions(gateway, rows):
        one.show(Output(stderr=True))
        try:
            _ask_about(gateway, one, as_json=as_json)
        except Refusal as exc:
            # The request was answered or has expired in the meantime.
            complain(str(exc))
    note("no more waiting requests" if rows else "no waiting requests")


def _ask_about(gateway: "GatewayConnection", one: WaitingQuestion, *, as_json: bool) -> None:
    """Prompt for the answer to one request; an empty line leaves it waiting."""
    _check_whole(gateway, one)
    match one.row.kind:
        case "approval.asked":
            body = _ask_decision(one)
        case "question.asked":
            body = _ask_text(one)
        case "secret.asked":
            value = getpass.getpass("Secret (not shown; Enter leaves it waiting): ")
            body = {"value": value} if value else None
        case kind:
            text = f"this command cannot answer {clean(kind, 40)!r}"
            raise Refusal(text, "answer with POST /v1/interactions/{id}/answer")
    if body is None:
        note("still waiting")
    else:
        _give_answer(gateway, one, body, as_json=as_json)


def _check_whole(gateway: "GatewayConnection", one: WaitingQuestion) -> None:
    if not one.is_whole:
        page = f"{gateway.url}/ui/inbox/{one.row.interaction_id}"
        raise Refusal("this request is too long to decide on here", f"read all of it and decide at {page}")


def _ask_decision(one: WaitingQuestion) -> dict[str, Any] | None:
    decision = _ask_one_of("allow or deny? (Enter leaves it waiting): ", ("allow", "deny"))
    if decision is None:
        return None
    if one.is_held:
        if decision == "allow":
            return {"decision": "allow", "binding": one.row.binding}
        reason = _prompt("reason, for the agent? (Enter: none): ")[:_LONGEST_REASON]
        return {"decision": "deny", "reason": reason} if reason else {"decision": "deny"}
    if len(one.scopes) < 2:
        return {"decision": decision}
    scope = _ask_one_of(f"scope? {', '.join(one.scopes)} (Enter: {one.scopes[0]}): ", one.scopes)
    return {"decision": decision, "scope": scope or one.scopes[0]}


def _ask_one_of(question: str, words: Sequence[str]) -> str | None:
    """Prompt for one of these words or a prefix of it; return None for an empty line."""
    while reply := _prompt(question):
        found = [word for word in words if word.startswith(reply.lower())]
        if len(found) == 1:
            return found[0]
        note(f"enter {' or '.join(words)}")
    return None


def _ask_text(one: WaitingQuestion) -> dict[str, Any] | None:
    choices = [str(choice) for choice in one.event.get("choices") or ()]
    for number, choice in enumerate(choices, 1):
        Output(stderr=True).say(f"    {number}  {clean(choice, LONGEST_DECISION)}")
    reply = _prompt(f"Answer ({'number or ' if choices else ''}text; - skips the question, Enter leaves it waiting): ")
    by_number = reply.isdecimal() and reply.isascii() and reply not in choices and 1 <= int(reply[:9]) <= len(choices)
    return {"answer": "" if reply == "-" else choices[int(reply) - 1] if by_number else reply} if reply else None


def _prompt(question: str) -> str:
    """Prompt on stderr, so that stdout contains results only; return an empty text at the end of the input."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = ""
    try:
        line = sys.stdin.readline(MOST_BYTES)
    finally:
        if not line:
            sys.stderr.write("\n")
    return line.strip()
