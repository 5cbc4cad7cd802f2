"""The commands that list what a running gateway knows: runtimes, sessions, calls, inbox."""

from enum import StrEnum
from typing import Annotated

import typer

from gateway.cli.explained import RAW, explained
from gateway.cli.options import DEFAULT_URL, KeyOption, LimitOption, RowsOption, RuntimeOption, SessionOption, UrlOption


class CallStanding(StrEnum):
    """How a call can stand."""

    QUEUED = "queued"
    DISPATCHED = "dispatched"
    ACCEPTED = "accepted"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELED = "canceled"
    EXPIRED = "expired"


_TABLE = "In a terminal a table that fits it; in a pipe all columns in full with tabs between them, without a heading."


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman runtimes\n  dragoman runtimes --json | jq -c '{{name, links}}'\n\n"
        f"{_TABLE}\nLinks are those of the gateway that answers."
    )(runtimes)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman sessions\n  dragoman sessions --runtime finn --open\n"
        "  dragoman sessions --limit 10000 | cut -f 1\n"
        "  dragoman sessions --json | jq -r .session_id\n\n"
        f"The newest first. {_TABLE}"
    )(sessions)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman calls\n  dragoman calls --session finn/agent-7\n"
        "  dragoman calls --state queued --state dispatched\n  dragoman calls --unknown --json | jq -r .call_id\n\n"
        f"The newest first. {_TABLE}"
    )(calls)
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman inbox\n  dragoman inbox --session finn/agent-7\n"
        "  dragoman inbox --json | jq -r .interaction_id\n\n"
        "`dragoman answer` answers: in a terminal it shows the same, and asks.\n"
        "In a pipe: id, kind, session, until when, and what is asked, with tabs between them."
    )(inbox)


def runtimes(*, as_json: RowsOption = False, url: UrlOption = DEFAULT_URL, key: KeyOption = None) -> None:
    """List the runtimes and how their links stand."""
    from gateway.cli.client import ApiClient
    from gateway.cli.lists import list_runtimes

    with explained(), ApiClient(url, key) as api:
        list_runtimes(api, as_json=as_json)


def sessions(
    *,
    runtime: RuntimeOption = None,
    open_only: Annotated[bool, typer.Option("--open", help="Without those that are closed.")] = False,
    limit: LimitOption = 50,
    as_json: RowsOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """List the sessions, newest first."""
    from gateway.cli.client import ApiClient
    from gateway.cli.lists import list_sessions

    with explained(), ApiClient(url, key) as api:
        which = {"runtime": runtime, "open": "true" if open_only else None}
        list_sessions(api, which, limit=limit, as_json=as_json)


def calls(
    *,
    session: SessionOption = None,
    runtime: RuntimeOption = None,
    tool: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this tool.")] = None,
    state: Annotated[
        list[CallStanding] | None,
        typer.Option(metavar="STATE", help=f"Only those that stand so: {', '.join(CallStanding)}; may be repeated."),
    ] = None,
    unknown: Annotated[bool, typer.Option("--unknown", help="Only those whose outcome nobody knows.")] = False,
    limit: LimitOption = 50,
    as_json: RowsOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """List what agents asked for, newest first."""
    from gateway.cli.client import ApiClient
    from gateway.cli.lists import list_calls

    with explained(), ApiClient(url, key) as api:
        which = {
            "runtime": runtime,
            "tool": tool,
            "state": [one.value for one in state or ()],
            "unknown": "true" if unknown else None,
        }
        list_calls(api, session, which, limit=limit, as_json=as_json)


def inbox(
    *,
    session: SessionOption = None,
    limit: LimitOption = 50,
    as_json: RowsOption = False,
    url: UrlOption = DEFAULT_URL,
    key: KeyOption = None,
) -> None:
    """List what waits for a person, and how to answer it."""
    from gateway.cli.client import ApiClient
    from gateway.cli.waiting import show_waiting

    with explained(), ApiClient(url, key) as api:
        show_waiting(api, session, limit=limit, as_json=as_json)
