"""`dragoman ping`: sends a signed probe to an executor, and reports signature, clock, status and time."""

import asyncio
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import typer

from gateway.cli.config_file import ConfigOption, choose
from gateway.cli.errors import report_errors
from gateway.cli.help import examples
from gateway.cli.options import RowsOption, argument
from gateway.cli.terminal import Check, say_json, show_check
from gateway.errors import OperatorError

if TYPE_CHECKING:
    from pydantic import SecretStr

    from gateway.executors.webhook.reader import Exchange
    from gateway.settings.model import WebhookSpec

_TOLERANCE = 300
"""Seconds that a receiver of Standard Webhooks allows between a timestamp and its own clock."""
_PATIENCE = timedelta(seconds=10)

commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman ping cards",
        more="The probe is a signed `tool.canceled` for a call that does not exist, which runs nothing.\n"
        "A second one with a false signature finds a backend that does not verify signatures.",
    )
)
def ping(
    executor: str = argument("EXECUTOR", "Name of a webhook executor in the configuration."),
    *,
    config: ConfigOption = None,
    as_json: RowsOption = False,
) -> None:
    """Send a signed probe to an executor."""
    with report_errors():
        from gateway.plugins import load_configuration
        from gateway.settings.model import WebhookSpec
        from gateway.settings.place import suggest

        settings = load_configuration(choose(config), os.environ).settings
        spec = settings.executors.get(executor)
        if not isinstance(spec, WebhookSpec):
            known = [name for name, one in settings.executors.items() if isinstance(one, WebhookSpec)]
            raise OperatorError(f"there is no webhook executor {executor!r}; {suggest(executor, known)}")
        checks = list(_probe(spec))
        for check in checks:
            say_json(asdict(check)) if as_json else show_check(check)
    raise typer.Exit(1 if any(check.state == "broken" for check in checks) else 0)


def _probe(spec: "WebhookSpec") -> Iterator[Check]:
    from pydantic import SecretStr

    from gateway.executors.webhook.answers import clean, name_status
    from gateway.executors.webhook.reader import HttpAnswer, Unread
    from gateway.executors.webhook.sent import sent_to

    hidden = sent_to(spec.url, spec.secret, spec.headers)
    answer, took = asyncio.run(_send(spec, spec.secret))
    if not isinstance(answer, HttpAnswer):
        yield Check(
            "broken", clean(answer.reason, hidden=hidden), "check `url`, the network, and that the backend runs"
        )
        return
    told = "" if isinstance(answer.body, Unread) else clean(answer.body.decode(errors="replace"), hidden=hidden)
    well = 200 <= answer.status < 300
    said = f"answered {name_status(answer.status)} in {took * 1000:.0f} ms{'' if well or not told else f': {told}'}"
    if well:
        yield Check("ok", said)
    elif answer.status in (401, 403):
        yield Check("broken", f"signature refused: {said}", "compare `secret` on both sides, and the clocks")
    else:
        yield Check("broken", said, "check `url`: a backend responds to `tool.canceled` with 2xx")
    if not spec.secret:
        yield Check("warning", "requests are not signed", "set `secret` here and in the backend")
    elif well:
        false, _ = asyncio.run(_send(spec, (SecretStr(f"whsec_{uuid.uuid4().hex}"),)))
        if isinstance(false, HttpAnswer) and 200 <= false.status < 300:
            text = "the backend does not verify signatures: it accepted a false one too"
            yield Check("warning", text, "verify `webhook-signature` in the backend")
        else:
            yield Check("ok", "signature accepted; a false one is refused")
    yield from _compare_clocks(answer.headers.get(b"date", b"").decode("latin-1"))


def _compare_clocks(date: str) -> Iterator[Check]:
    try:
        apart = time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        yield Check("note", "clock not compared: the response has no date")
        return
    # The header has whole seconds.
    text = f"clocks agree within {max(abs(apart), 1):.0f} s"
    if abs(apart) < _TOLERANCE / 2:
        yield Check("ok", text)
    else:
        side = "behind" if apart > 0 else "ahead"
        text = f"the backend's clock is {abs(apart):.0f} s {side}; a receiver allows {_TOLERANCE} s"
        yield Check("broken", text, "synchronize the clocks of both machines")


async def _send(spec: "WebhookSpec", secrets: "Sequence[SecretStr]") -> "tuple[Exchange, float]":
    """Send one probe; return its result and the seconds that it took."""
    from gateway.executors.webhook.client import HttpClient
    from gateway.executors.webhook.request import RequestWriter
    from gateway.runtime.system_clock import SystemClock

    writer = RequestWriter(spec.url, secrets=secrets, headers=spec.headers, clock=SystemClock())
    call_id = str(uuid.uuid4())
    ids = {"call_id": call_id, "native_call_id": call_id, "session_id": str(uuid.uuid4())}
    written = writer.write(
        f"{call_id}.cancel", "tool.canceled", data={**ids, "tool": "ping", "reason": "dragoman ping"}
    )
    async with HttpClient(str(spec.url), concurrency=1, max_response=64 * 1024) as client:
        began = time.monotonic()
        return await client.post(written, within=_PATIENCE, read=lambda exchange: exchange), time.monotonic() - began
