"""Compares what three sides wrote down about the same calls: the ledger, the runtime, and the executors. Pure.

The runtime says what it asked for and what it was told, the executors say what they were asked, the ledger says
how each call ended and what its journals hold. `judge` finds every contradiction and tells each call's history.

Requests, answers and results carry nonces, so that words that went to another call are found by `nonces`.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from secrets import token_hex

ENDED = {"succeeded": "success", "failed": "failure", "canceled": "canceled", "expired": "failure"}
"""The states of a call that has ended, with what the runtime has to be told then."""


BEFORE = 1.0
"""Seconds before a process or a link is ended in which what was written to it may be lost."""
_AFTER = 5.0
"""Seconds behind a fault in which a link may still die of it."""


def new_nonce() -> str:
    """A word that nobody else says."""
    return f"nonce-{token_hex(8)}"


def nonces(text: str) -> frozenset[str]:
    """All nonces in a text, however it is wrapped."""
    return frozenset(re.findall(r"nonce-[0-9a-f]{16}", text))


@dataclass(frozen=True, slots=True)
class Span:
    """A time by the steady clock that runtime and tests share."""

    begin: float
    end: float = inf


def outages(faults: Iterable[Span], links: Iterable[Span]) -> list[Span]:
    """Find when what a runtime wrote may have been lost on its wire: only these times may be told as an excuse.

    `faults` are what was done to a gateway's process or to its link: when it was killed (no length), or frozen and
    thawed. `links` are the runtime's own record of its links. A time ends when another link stands.
    """
    made = sorted(links, key=lambda link: link.begin)
    found: list[Span] = []
    for fault in faults:
        relinked = min((link.begin for link in made if link.begin > fault.begin), default=inf)
        found.append(Span(fault.begin - BEFORE, max(fault.begin, min(fault.end, relinked))))
        died = (link.end for link in made if fault.begin <= link.end <= fault.end + _AFTER)
        found += [Span(end - BEFORE, end) for end in died]
    # When there was no link at all.
    dead_since = -inf
    for link in made:
        if link.begin > dead_since:
            found.append(Span(dead_since, link.begin))
        dead_since = max(dead_since, link.end)
    return [*found, Span(dead_since)] if dead_since < inf else found


@dataclass(frozen=True, slots=True)
class Entry:
    """One call in the ledger."""

    call_id: str
    native_call_id: str
    state: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Finished:
    """One tool.finished in a journal; the body is the whole event as text."""

    call_id: str
    body: str


@dataclass(frozen=True, slots=True)
class Journal:
    """One session's events: their sequences as they were read, and its outcomes."""

    session_id: str
    sequences: Sequence[int]
    outcomes: Sequence[Finished] = ()


@dataclass(frozen=True, slots=True)
class Told:
    """One outcome as it reached the runtime; `text` is the native frame, word for word."""

    outcome: str
    text: str
    said: str = ""
    """Its result or error, as JSON."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One call that the runtime made, and all that it was told about it, in order."""

    native_call_id: str
    tool: str
    told: Sequence[Told] = ()
    arguments: str = ""
    """As JSON with sorted keys."""
    written: Span | None = None
    """When it was written, once and never again; None where the runtime repeats what was not read."""
    wire: str = ""
    """Which of `Rules.outages` are those of its link."""
    withdrawn: bool = False
    """Whether the runtime canceled it; nothing has to be told then."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that an executor read."""

    key: str
    native_call_id: str
    tool: str
    arguments: str
    answers: tuple[str, ...] = ()
    """What it answered, at once or by callback, as JSON."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be done with which tools."""

    repeatable: frozenset[str] = frozenset()
    """Tools that executors may be asked for more than once."""
    inward: frozenset[str] = frozenset()
    """Tools that are answered without asking anybody over the wire."""
    outages: Mapping[str, Sequence[Span]] = field(default_factory=dict[str, Sequence[Span]])
    """When frames may have died on each wire, before the first commit."""
    reasons: str = r"outcome unknown: "
    """What a failure has to say of which no executor was asked: a regular expression."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found; guilty where there are charges."""

    calls: int
    lost: int
    different: int
    """Calls with more than one outcome, or with another one than their own executor gave."""
    told_again: int
    """Result frames that were sent more than once."""
    asked_again: int
    """Requests that came more than once."""
    unknown: int
    wire: int = 0
    """Calls that were lost on the wire."""
    at_risk: int = 0
    """Calls that might have been."""
    charges: tuple[str, ...] = field(default=())

    def acquit(self) -> "Verdict":
        """Return this verdict.

        Raises:
            AssertionError: there are charges; the text tells the history of each call concerned.
        """
        assert not self.charges, "\n\n".join(["", *self.charges])
        return self


class _Case:
    """All the evidence about one call."""

    def __init__(self, wanted: Wanted | None, entries: list[Entry], requests: list[Request]) -> None:
        self.wanted = wanted
        self.entries = entries
        self.requests = requests
        self.outcomes: list[Finished] = []

    def history(self, name: str, charge: str) -> str:
        told = [] if self.wanted is None else [f"  the runtime was told  {one.text[:400]}" for one in self.wanted.told]
        return "\n".join(
            [
                f"call {name!r}: {charge}",
                *(f"  the runtime asked for  {self.wanted.tool}" for _ in [1] if self.wanted is not None),
                *(f"  the ledger says        {one.state}{', unknown' * one.unknown}" for one in self.entries),
                *(f"  the journal says       {one.body[:400]}" for one in self.outcomes),
                *(f"  an executor was asked  {one.tool}({one.arguments[:200]}) as {one.key}" for one in self.requests),
                *told,
            ]
        )


def judge(
    wanted: Iterable[Wanted],
    entries: Iterable[Entry],
    requests: Iterable[Request],
    journals: Iterable[Journal],
    rules: Rules,
    *,
    counted: int | None = None,
) -> Verdict:
    """Weigh all the evidence; `counted` is how many repeats to the runtime the gateway itself says there were."""
    cases = _cases(wanted, entries, requests)
    read = list(journals)
    by_id = {entry.call_id: case for case in cases.values() for entry in case.entries}
    charges: list[str] = []
    for journal in read:
        charges += _gaps(journal)
        for outcome in journal.outcomes:
            if (case := by_id.get(outcome.call_id)) is not None:
                case.outcomes.append(outcome)
    lost = different = unknown = wire = at_risk = 0
    for name, case in cases.items():
        was_lost, told_apart, found = _try(case, rules, journals=bool(read))
        charges += [case.history(name, charge) for charge in found]
        lost, different = lost + was_lost, different + told_apart
        risked = _is_at_risk(case.wanted, rules)
        at_risk, wire = at_risk + risked, wire + (risked and not case.entries and not was_lost)
        unknown += any(entry.unknown for entry in case.entries)
    told_again = sum(max(0, len(case.wanted.told) - 1) for case in cases.values() if case.wanted is not None)
    asked_again = sum(max(0, len(case.requests) - 1) for case in cases.values())
    if counted is not None and told_again > counted:
        charges.append(f"the runtime saw {told_again} repeats, the gateway has counted {counted}")
    made = sum(case.wanted is not None for case in cases.values())
    return Verdict(made, lost, different, told_again, asked_again, unknown, wire, at_risk, tuple(charges))


def _cases(wanted: Iterable[Wanted], entries: Iterable[Entry], requests: Iterable[Request]) -> Mapping[str, _Case]:
    asked_for = {one.native_call_id: one for one in wanted}
    recorded: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        recorded[entry.native_call_id].append(entry)
    heard: defaultdict[str, list[Request]] = defaultdict(list)
    for request in requests:
        heard[request.native_call_id].append(request)
    names = dict.fromkeys([*asked_for, *recorded, *heard])
    return {name: _Case(asked_for.get(name), recorded[name], heard[name]) for name in names}


def _gaps(journal: Journal) -> list[str]:
    sequences = list(journal.sequences)
    if not sequences or sequences == list(range(sequences[0], sequences[0] + len(sequences))):
        return []
    twice = [number for number, times in Counter(sequences).items() if times > 1]
    missing = sorted(set(range(sequences[0], max(sequences) + 1)) - set(sequences))
    disorder = "" if sequences == sorted(sequences) else ", and are out of order"
    found = f"the sequences have gaps {missing[:20]}, repeats {twice[:20]}{disorder}"
    return [f"session {journal.session_id!r}: {found}"]


def _is_at_risk(wanted: Wanted | None, rules: Rules) -> bool:
    """Whether a call was written while its wire was dead, or just before."""
    if wanted is None or (written := wanted.written) is None:
        return False
    return any(span.begin <= written.end and written.begin <= span.end for span in rules.outages.get(wanted.wire, ()))


def _try(case: _Case, rules: Rules, *, journals: bool) -> tuple[bool, bool, list[str]]:
    """Find whether a call was lost, whether it has several outcomes, and everything that is wrong with it."""
    if case.wanted is None:
        return False, False, ["nobody asked for it"]
    if not case.entries:
        excused = _is_at_risk(case.wanted, rules) and not case.requests and not case.wanted.told
        return (False, False, []) if excused else (True, False, ["lost, the ledger does not know it"])
    if len(case.entries) > 1:
        return False, True, ["the ledger has it twice"]
    entry, told = case.entries[0], case.wanted.told
    if entry.state not in ENDED:
        return True, False, ["lost, it has no outcome"]
    if not told and not case.wanted.withdrawn:
        return True, False, ["lost, its outcome never reached the runtime"]
    charges: list[str] = []
    outcomes = {one.outcome for one in told}
    apart = len(outcomes) > 1 or len({one.body for one in case.outcomes}) > 1
    if apart:
        charges.append("different outcomes for one call")
    elif len({one.text for one in told}) > 1:
        charges.append("a repeat differs from what was told first")
    if journals and len(case.outcomes) != 1 and not apart:
        charges.append(f"the journal has {len(case.outcomes)} outcomes")
    if outcomes and outcomes != {ENDED[entry.state]} and not apart:
        charges.append("the runtime was told something else than the ledger says")
    swapped = _nonces(case, rules)
    return False, apart or bool(swapped), charges + swapped + _requests(case, entry, rules)


def _nonces(case: _Case, rules: Rules) -> list[str]:
    """Find words of another call, and a success that is not its own executor's."""
    assert case.wanted is not None
    own = nonces(case.wanted.arguments)
    if not own:
        return []
    answered = frozenset[str]().union(*(nonces(answer) for one in case.requests for answer in one.answers)) - own
    charges: list[str] = []
    for who, outcome, said in [
        *(("the runtime was told", one.outcome, one.said) for one in case.wanted.told),
        *(("the journal holds", ENDED[case.entries[0].state], one.body) for one in case.outcomes),
    ]:
        found = nonces(said)
        if found - own - answered:
            charges.append(f"{who} words of another call")
        elif outcome == "success" and answered and not found & answered:
            charges.append(f"{who} a success that its executor did not answer")
    return list(dict.fromkeys(charges))


def _requests(case: _Case, entry: Entry, rules: Rules) -> list[str]:
    charges: list[str] = []
    if {one.key for one in case.requests} - {entry.call_id}:
        charges.append("an executor was asked under another key")
    if len({(one.tool, one.arguments) for one in case.requests}) > 1:
        charges.append("an executor was asked for different things under one key")
    assert case.wanted is not None
    tool, arguments = case.wanted.tool, case.wanted.arguments
    if arguments and {one.arguments for one in case.requests} - {arguments}:
        charges.append("an executor was asked for something else than the runtime wanted")
    if tool in rules.inward:
        return charges
    if len(case.requests) > 1 and tool not in rules.repeatable:
        charges.append("an executor was asked again for what must not be repeated")
    if entry.state == "succeeded" and not case.requests:
        charges.append("a success that no executor was asked for")
    if ENDED[entry.state] == "failure" and not case.requests:
        reasons = [one.said for one in case.wanted.told] + [one.body for one in case.outcomes]
        if not all(re.search(rules.reasons, reason) for reason in reasons):
            charges.append("a failure that no executor was asked for and that does not say why")
    if entry.unknown and tool in rules.repeatable:
        charges.append("a call that may be repeated was left unknown")
    return charges
