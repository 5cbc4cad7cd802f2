"""Compares what three sides wrote down about the same calls: the ledger, the runtime, and the executors. Pure.

The runtime says what it asked for and what it was told, the executors say what they were asked, the ledger says
how each call ended and what its journals hold. `judge` finds every contradiction and tells each call's story.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

ENDED = {"succeeded": "success", "failed": "failure", "canceled": "canceled", "expired": "failure"}
"""The states of a call that has ended, with what the runtime has to be told then."""


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


@dataclass(frozen=True, slots=True)
class Wanted:
    """One call that the runtime made, and all that it was told about it, in order."""

    native_call_id: str
    tool: str
    told: Sequence[Told] = ()
    withdrawn: bool = False
    """Whether the runtime canceled it; nothing has to be told then."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request that an executor read."""

    key: str
    native_call_id: str
    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be done with which tools."""

    repeatable: frozenset[str] = frozenset()
    """Tools that executors may be asked for more than once."""
    inward: frozenset[str] = frozenset()
    """Tools that are answered without asking anybody over the wire."""
    given_up: frozenset[str] = frozenset()
    """Native ids of calls that may be missing everywhere: their frames died before the first commit."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found; guilty where there are charges."""

    calls: int
    lost: int
    different: int
    """Calls with more than one outcome."""
    told_again: int
    """Result frames that were sent more than once."""
    asked_again: int
    """Requests that came more than once."""
    unknown: int
    charges: tuple[str, ...] = field(default=())

    def acquit(self) -> "Verdict":
        """Return this verdict.

        Raises:
            AssertionError: there are charges; the text tells the story of each call concerned.
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

    def story(self, name: str, charge: str) -> str:
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
    lost = different = unknown = 0
    for name, case in cases.items():
        was_lost, told_apart, found = _try(name, case, rules, journals=bool(read))
        charges += [case.story(name, charge) for charge in found]
        lost, different = lost + was_lost, different + told_apart
        unknown += any(entry.unknown for entry in case.entries)
    told_again = sum(max(0, len(case.wanted.told) - 1) for case in cases.values() if case.wanted is not None)
    asked_again = sum(max(0, len(case.requests) - 1) for case in cases.values())
    if counted is not None and told_again > counted:
        charges.append(f"the runtime saw {told_again} repeats, the gateway has counted {counted}")
    made = sum(case.wanted is not None for case in cases.values())
    return Verdict(made, lost, different, told_again, asked_again, unknown, tuple(charges))


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


def _try(name: str, case: _Case, rules: Rules, *, journals: bool) -> tuple[bool, bool, list[str]]:
    """Find whether a call was lost, whether it has several outcomes, and everything that is wrong with it."""
    if case.wanted is None:
        return False, False, ["nobody asked for it"]
    if not case.entries:
        excused = name in rules.given_up and not case.requests and not case.wanted.told
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
    return False, apart, charges + _requests(case, entry, rules)


def _requests(case: _Case, entry: Entry, rules: Rules) -> list[str]:
    charges: list[str] = []
    if {one.key for one in case.requests} - {entry.call_id}:
        charges.append("an executor was asked under another key")
    if len({(one.tool, one.arguments) for one in case.requests}) > 1:
        charges.append("an executor was asked for different things under one key")
    tool = _tool(case)
    if tool in rules.inward:
        return charges
    if len(case.requests) > 1 and tool not in rules.repeatable:
        charges.append("an executor was asked again for what must not be repeated")
    if entry.state == "succeeded" and not case.requests:
        charges.append("a success that no executor was asked for")
    if entry.unknown and tool in rules.repeatable:
        charges.append("a call that may be repeated was left unknown")
    return charges


def _tool(case: _Case) -> str:
    """The tool as the runtime named it."""
    assert case.wanted is not None
    return case.wanted.tool
