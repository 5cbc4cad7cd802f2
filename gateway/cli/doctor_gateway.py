"""The checks of `dragoman doctor` that ask the running gateway: its links, and what its rules can hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeVar

from gateway.cli.errors import Misused
from gateway.cli.help import DEFAULT_URL
from gateway.cli.lines import clean
from gateway.cli.terminal import Check

if TYPE_CHECKING:
    from dragoman.client import Runtime, Session
    from gateway.cli.connection import GatewayConnection
    from gateway.settings.model import Settings
    from gateway.settings.routes import RouteSpec

_MOST_LINKS = 20
_MOST_SESSIONS, _MOST_EVENTS, _MOST_CALLS = 20, 2_000, 200
"""The newest sessions, and of each the newest events and the calls among them, in which actions are looked for."""

T = TypeVar("T")
_Seen = dict[tuple[str, str], set[str]]
"""Where calls of a tool ran, by runtime and tool: `host` or `runtime`."""


def _ask(env: Mapping[str, str], default: str, ask: "Callable[[GatewayConnection, str], T]") -> T | Check:
    """Ask the running gateway at its URL; a check says why it was not asked."""
    from dragoman.client import ClientError
    from gateway.cli.connection import GatewayConnection, explain_error

    url = env.get("DRAGOMAN_URL") or default
    try:
        with GatewayConnection(url, env.get("DRAGOMAN_KEY")) as gateway:
            return ask(gateway, url)
    except ClientError as exc:
        refusal = explain_error(exc, url)
        return Check("note", f"not checked: {refusal}", refusal.fix)
    except Misused as exc:
        return Check("note", f"not checked: {exc}", "check DRAGOMAN_URL and DRAGOMAN_KEY")


def check_links(env: Mapping[str, str], default: str = DEFAULT_URL) -> Iterator[Check]:
    """Ask the running gateway for the sessions without a link and the failing executors, with the reasons."""

    def ask(gateway: "GatewayConnection", url: str) -> list[Check]:
        runtimes = gateway.run(gateway.client.runtimes())
        conditions = gateway.run(gateway.client.activity()).conditions
        failing = [
            Check("warning", f"{one.kind} {clean(one.name)}: {clean(one.reason or 'fails', 700)}") for one in conditions
        ]
        return [*_describe_links(runtimes, url), *failing]

    found = _ask(env, default, ask)
    yield from [found] if isinstance(found, Check) else found


def _describe_links(runtimes: "Sequence[Runtime]", url: str) -> Iterator[Check]:
    links = [(f"{runtime.name}/{clean(link.native_id)}", link) for runtime in runtimes for link in runtime.links]
    up = sum(link.state == "up" for _, link in links)
    total = len(links) + sum(runtime.autostart is not None for runtime in runtimes)
    yield Check("ok" if up or not total else "warning", f"{up} of {total} up at {url}")
    waiting = [(name, link) for name, link in links if link.state in {"asleep", "connecting"}]
    for name, link in waiting[:_MOST_LINKS]:
        why = f": {clean(link.reason, 300)}" if link.reason else ""
        yield Check("note", f"{name} is {link.state}{why}")
    if len(waiting) > _MOST_LINKS:
        yield Check("note", f"and {len(waiting) - _MOST_LINKS} more", "GET /v1/runtimes lists all")
    blocked = [(name, link.waits_for[0]) for name, link in links if link.waits_for]
    for name, question in blocked[:_MOST_LINKS]:
        yield Check(
            "note", f"messages to {name} wait for the approval {clean(question)}", "answer it: `dragoman inbox`"
        )
    if unstarted := [name for name, link in links if link.lacks_tools is None]:
        more = f" and {len(unstarted) - 1} more" if len(unstarted) > 1 else ""
        yield Check("note", f"the tools of {unstarted[0]}{more} are not known before the first message")
    lacking = [(name, link) for name, link in links if link.lacks_tools]
    for name, link in lacking[:_MOST_LINKS]:
        why = clean(link.lacks_tools_reason or "the runtime has not listed them", 500)
        yield Check("warning", f"{name} has no tools: {why}")
    if len(lacking) > _MOST_LINKS:
        yield Check("note", f"and {len(lacking) - _MOST_LINKS} more without tools", "GET /v1/runtimes lists all")


def check_rules(settings: "Settings", env: Mapping[str, str], default: str = DEFAULT_URL) -> Iterator[Check]:
    """Ask the running gateway whether agents run the tools of rules with `approve` or `deny` themselves."""
    rules = {
        index: route
        for index, route in enumerate(settings.routes)
        if (route.deny is not None or route.approve is not None) and (route.match.tool or "").strip("*")
    }
    if not rules:
        return
    seen = _ask(env, default, lambda gateway, _: _look_for_calls(gateway))
    if isinstance(seen, Check):
        yield seen
        return
    for index, route in rules.items():
        yield from _describe_rule(index, route, seen)


def _look_for_calls(gateway: "GatewayConnection") -> _Seen:
    seen: _Seen = {}
    sessions: Sequence[Session] = gateway.take(gateway.client.sessions(newest_first=True), _MOST_SESSIONS)[0]
    for session in sessions:
        after = max(0, session.last_sequence - _MOST_EVENTS)
        events = gateway.client.events(session, after=after, kind=("tool.requested",))
        for one in gateway.take(events, _MOST_CALLS)[0]:
            event = getattr(one, "event", None)
            if event is not None:
                seen.setdefault((session.runtime, str(event.tool)), set()).add(str(event.runs_in))
    return seen


def _describe_rule(index: int, route: "RouteSpec", seen: _Seen) -> Iterator[Check]:
    what = "denies" if route.deny is not None else "holds"
    for (runtime, tool), places in sorted(seen.items()):
        if places != {"runtime"} or not fnmatchcase(runtime, route.match.runtime):
            continue
        if fnmatchcase(tool, route.match.tool or "*"):
            name = f"'{clean(tool, 80)}'"
            text = f"routes[{index}] {what} {name}, which agents of {clean(runtime)} have only run themselves so far"
            yield Check("warning", text, "no route can hold what a runtime executes itself: gateway/http/APPROVALS.md")
            return
