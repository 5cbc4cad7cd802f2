"""What a running gateway says of its links, for `dragoman doctor`."""

from collections.abc import Iterator, Mapping

from gateway.cli.checks import Check
from gateway.cli.client import ApiClient, Refusal
from gateway.cli.lines import clean
from gateway.cli.options import DEFAULT_URL

_MOST = 20


def look_at_links(env: Mapping[str, str]) -> Iterator[Check]:
    """Say which sessions have no link, and why; the gateway is found as by the other commands."""
    url = env.get("DRAGOMAN_URL") or DEFAULT_URL
    try:
        with ApiClient(url, env.get("DRAGOMAN_KEY")) as api:
            runtimes = api.get("/v1/runtimes")["data"]
    except Refusal as exc:
        yield Check("note", f"not looked at: {exc}", exc.mend)
        return
    links = [(runtime["name"], link) for runtime in runtimes for link in runtime["links"]]
    unlinked = [(name, link) for name, link in links if link["state"] != "up"]
    # A gateway of the release before says nothing of an autostart.
    unstarted = [(runtime["name"], runtime["autostart"]) for runtime in runtimes if runtime.get("autostart")]
    up, wanted = len(links) - len(unlinked), len(links) + len(unstarted)
    yield Check("warning" if unstarted and not up else "ok", f"{up} of {wanted} up at {url}")
    for name, failing in unstarted:
        text = (
            f"runtime {clean(name)}: autostart has failed {failing['attempts']} times: {clean(failing['reason'], 300)}"
        )
        yield Check("warning", text, f"is retried at {failing['next_at']}")
    for runtime in runtimes:
        if runtime.get("reason"):
            yield Check("warning", f"runtime {clean(runtime['name'])}: {clean(runtime['reason'], 300)}")
    for name, link in unlinked[:_MOST]:
        why = f": {clean(link['reason'], 300)}" if link["reason"] else ""
        state = "note" if link["state"] == "asleep" else "warning"
        yield Check(state, f"{name}/{clean(link['native_id'])} is {link['state']}{why}")
    if len(unlinked) > _MOST:
        yield Check("note", f"and {len(unlinked) - _MOST} more", "GET /v1/runtimes lists all")
    # An older gateway does not report it.
    lacking = [(name, link) for name, link in links if link.get("lacks_tools")]
    for name, link in lacking[:_MOST]:
        why = clean(link.get("lacks_tools_reason") or "it has not listed them", 500)
        yield Check("warning", f"{name}/{clean(link['native_id'])} has no tools: {why}")
    if len(lacking) > _MOST:
        yield Check("note", f"and {len(lacking) - _MOST} more without tools", "GET /v1/runtimes lists all")
