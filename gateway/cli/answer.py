"""Shows the questions that wait for a person, and answers one."""

import getpass
import json
import sys
from datetime import datetime
from typing import Any
from urllib.parse import quote

from rich.console import Console
from rich.text import Text

from gateway.cli.client import ApiClient
from gateway.cli.faults import Misused
from gateway.cli.lines import clean, facts_of
from gateway.cli.send import MOST_BYTES, read_text
from gateway.errors import OperatorError

_HOW = {
    "approval.asked": "--allow | --deny [--scope {scopes}]",
    "question.asked": '--text "…"',
    "secret.asked": "--secret",
}


def body_of(*, allow: bool, deny: bool, scope: str | None, text: str | None, secret: bool) -> dict[str, Any]:
    """Make the answer that options say; a secret is asked for without showing it.

    Raises:
        Misused: they do not go together. OperatorError: no secret was given.
    """
    if allow + deny + (text is not None) + secret != 1:
        raise Misused("give exactly one of --allow, --deny, --text and --secret")
    if scope is not None and not (allow or deny):
        raise Misused("--scope belongs to --allow or --deny")
    if secret:
        return {"value": _ask_secret()}
    if text is not None:
        return {"answer": read_text(text)}
    return {"decision": "allow" if allow else "deny"} | ({} if scope is None else {"scope": scope})


def _ask_secret() -> str:
    if sys.stdin.isatty():
        value = getpass.getpass("Secret (not shown): ")
    else:
        value = sys.stdin.readline(MOST_BYTES).rstrip("\r\n")
    if not value:
        raise OperatorError("no secret was given, so nothing was sent")
    return value


def give(api: ApiClient, interaction: str, body: dict[str, Any]) -> None:
    """Answer a question.

    Raises:
        Refusal: it does not wait any more, or wants another form of answer.
    """
    row = api.post(f"/v1/interactions/{quote(interaction, safe='')}/answer", body)
    text = f"{clean(row['state'])}: {clean(row['kind'])} {clean(row['interaction_id'])}"
    Console(highlight=False).print(Text(text), soft_wrap=True)


def show_waiting(api: ApiClient, *, as_json: bool) -> None:
    """List what waits, oldest first, each with the way to answer it."""
    console = Console(highlight=False)
    rows = list(api.pages("/v1/interactions", state="waiting"))
    for row in rows:
        if as_json:
            console.print(Text(json.dumps(row)), soft_wrap=True)
            continue
        event: dict[str, Any] = row.get("event") or {}
        scopes = " | ".join(clean(scope) for scope in event.get("scopes") or ("once",))
        how = _HOW.get(row["kind"], "").format(scopes=scopes)
        name = (clean(row["interaction_id"]), "bold")
        console.print(Text.assemble(name, f"  {clean(row['kind'])}  ", facts_of(event)), soft_wrap=True)
        session, until = clean(row["session_id"]), _until(row.get("expires_at"))
        console.print(Text(f"    session {session}{until}: {how}", "dim"), soft_wrap=True)
    if not rows and not as_json:
        console.print(Text("nothing waits for an answer"))


def _until(expires_at: object) -> str:
    if not expires_at:
        return ""
    return f", until {datetime.fromisoformat(str(expires_at)).astimezone():%H:%M:%S}"
