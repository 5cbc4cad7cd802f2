"""The webhook executor against backends that behave: what is on the wire, and what is made of the answers."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
import structlog
from pydantic import TypeAdapter
from standardwebhooks.webhooks import Webhook

from gateway.errors import OperatorError
from gateway.executors.port import Accepted, Answered, Cancellation, NeverSent, Replied, Uncertain
from gateway.executors.webhook.executor import WebhookExecutor
from gateway.settings.model import WebhookSpec
from gateway.testing.conformance.executor import make_request
from tests.executors.peers import Seen, SystemClock, hang, http, http_json, send, serve, serve_bytes
from tests.pace import PATIENCE

NEW = "whsec_bmV3IHNlY3JldCBjYW5hcnkgd2l0aCAzMiBieXRlcyE="
OLD = "whsec_b2xkIHNlY3JldCBjYW5hcnkgd2l0aCAzMiBieXRlcyE="

CANCELLATION = Cancellation(
    key="call-1.cancel",
    data={
        "call_id": "call-1",
        "native_call_id": "n",
        "session_id": "s",
        "tool": "ask_for_cards",
        "reason": "withdrawn",
    },
    timeout=timedelta(seconds=3),
)


def make_executor(url: str, **options: Any) -> WebhookExecutor:
    spec: WebhookSpec = TypeAdapter(WebhookSpec).validate_python({"type": "webhook", "url": url} | options)
    return WebhookExecutor(spec, clock=SystemClock())


async def answer_success(_seen: Seen, writer: asyncio.StreamWriter) -> None:
    await send(writer, http_json(200, {"outcome": "success", "result": {"cards": ["7"]}}))


async def test_a_call_is_one_signed_post_and_its_answer_the_outcome() -> None:
    async with (
        serve(answer_success) as peer,
        make_executor(peer.url + "?team=a%2Fb", secret=NEW, headers={"X-Tenant": "acme"}) as executor,
    ):
        request = make_request(attempt=2)
        answer = await executor.execute(request)
    assert isinstance(answer, Answered)
    assert answer.outcome.result == {"cards": ["7"]}
    [seen] = peer.seen
    assert seen.head.startswith(b"POST /tools?team=a%2Fb HTTP/1.1\r\n")
    assert seen.json["type"] == "tool.requested"
    assert seen.json["data"] == request.data
    assert seen.headers["content-type"] == "application/json"
    assert seen.headers["webhook-id"] == seen.headers["idempotency-key"] == request.key
    assert seen.headers["dragoman-attempt"] == "2"
    assert seen.headers["x-tenant"] == "acme"
    assert seen.headers["user-agent"].startswith("dragoman/")
    assert "cookie" not in seen.headers
    Webhook(NEW).verify(seen.body, dict(seen.headers))


async def test_both_secrets_verify_on_the_wire_while_rotating() -> None:
    async with serve(answer_success) as peer, make_executor(peer.url, secret=[NEW, OLD]) as executor:
        await executor.execute(make_request())
    Webhook(NEW).verify(peer.seen[0].body, dict(peer.seen[0].headers))
    Webhook(OLD).verify(peer.seen[0].body, dict(peer.seen[0].headers))


async def test_without_a_secret_nothing_is_signed() -> None:
    async with serve(answer_success) as peer, make_executor(peer.url) as executor:
        await executor.execute(make_request())
    assert "webhook-signature" not in peer.seen[0].headers
    assert "webhook-timestamp" in peer.seen[0].headers


async def test_credentials_of_the_url_are_sent_as_basic_auth() -> None:
    async with serve(answer_success) as peer:
        url = peer.url.replace("http://", "http://user:p%40ss@")
        async with make_executor(url) as executor:
            await executor.execute(make_request())
    assert peer.seen[0].headers["authorization"] == "Basic dXNlcjpwQHNz"


async def test_a_connection_is_used_again() -> None:
    async with serve(answer_success) as peer, make_executor(peer.url) as executor:
        for number in range(5):
            assert isinstance(await executor.execute(make_request(key=f"call-{number}")), Answered)
    assert len(peer.seen) == 5
    assert peer.connections == 1


async def test_no_more_connections_than_the_concurrency_are_opened() -> None:
    async with serve(answer_success) as peer, make_executor(peer.url, concurrency=3) as executor:
        answers = await asyncio.gather(*(executor.execute(make_request(key=f"call-{n}")) for n in range(30)))
    assert all(isinstance(answer, Answered) for answer in answers)
    assert peer.connections <= 3


async def test_a_body_of_several_mebibytes_is_sent_whole() -> None:
    async with serve(answer_success) as peer, make_executor(peer.url, secret=NEW) as executor:
        answer = await executor.execute(make_request(arguments={"text": "x" * 3 * 1024**2}))
    assert isinstance(answer, Answered)
    Webhook(NEW).verify(peer.seen[0].body, dict(peer.seen[0].headers))


async def test_cookies_are_not_kept() -> None:
    async def bake(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http_json(200, {"outcome": "success"}, set_cookie="a=1"))

    async with serve(bake) as peer, make_executor(peer.url) as executor:
        await executor.execute(make_request())
        await executor.execute(make_request())
    assert all("cookie" not in seen.headers for seen in peer.seen)


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve(answer_success) as peer, serve(hang) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        async with make_executor(peer.url) as executor:
            assert isinstance(await executor.execute(make_request()), Answered)
    assert proxy.connections == 0


async def test_202_is_accepted_also_with_a_body() -> None:
    async with serve_bytes(http(202, b"queued")) as peer, make_executor(peer.url) as executor:
        assert await executor.execute(make_request()) == Accepted()


async def test_raw_takes_the_whole_body() -> None:
    async with serve_bytes(http_json(200, [1, 2])) as peer, make_executor(peer.url, response="raw") as executor:
        answer = await executor.execute(make_request())
    assert isinstance(answer, Answered)
    assert answer.outcome.result == [1, 2]


async def test_an_approval_is_replied_to() -> None:
    async with serve_bytes(http_json(200, {"decision": "deny"})) as peer, make_executor(peer.url) as executor:
        assert await executor.execute(make_request("approval.asked")) == Replied({"decision": "deny"})
    assert peer.seen[0].json["type"] == "approval.asked"


async def test_a_cancel_is_told_with_its_own_key_and_signature() -> None:
    async def thank(_seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, http(204))

    async with serve(thank) as peer, make_executor(peer.url, secret=NEW) as executor:
        with structlog.testing.capture_logs() as logs:
            await executor.cancel(CANCELLATION)
    [seen] = peer.seen
    assert seen.json["type"] == "tool.canceled"
    assert seen.json["data"] == CANCELLATION.data
    assert seen.headers["webhook-id"] == "call-1.cancel"
    Webhook(NEW).verify(seen.body, dict(seen.headers))
    assert logs == []


@pytest.mark.parametrize("answer", [http(500, b"canary"), http(404, b"canary"), http(302), b"", b"garbage\r\n\r\n"])
async def test_a_cancel_that_fails_is_logged_and_not_raised(answer: bytes) -> None:
    async with serve_bytes(answer) as peer, make_executor(peer.url, secret=NEW) as executor:
        with structlog.testing.capture_logs() as logs:
            await executor.cancel(CANCELLATION)
    [line] = logs
    assert (line["log_level"], line["event"], line["key"]) == ("warning", "cancel failed", "call-1.cancel")
    assert "canary" not in str(logs)


async def test_a_cancel_that_cannot_be_written_is_logged_and_not_raised() -> None:
    async with make_executor("http://127.0.0.1:9/") as executor:
        with structlog.testing.capture_logs() as logs:
            await executor.cancel(Cancellation(key="k.cancel", data={"reason": "\ud800"}, timeout=timedelta(seconds=1)))
    assert [line["event"] for line in logs] == ["cancel not sent"]


async def test_a_cancel_gets_through_while_every_connection_is_taken() -> None:
    canceled = asyncio.Event()

    async def hang_on_calls(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.json["type"] == "tool.canceled":
            canceled.set()
            await send(writer, http(204))

    async with serve(hang_on_calls) as peer, make_executor(peer.url, concurrency=1) as executor:
        call = asyncio.ensure_future(executor.execute(make_request(timeout=timedelta(minutes=1))))
        async with asyncio.timeout(PATIENCE):
            await peer.asked.wait()
            await executor.cancel(CANCELLATION)
        assert canceled.is_set()
        call.cancel()
        await asyncio.wait([call], timeout=5)


async def test_a_canceled_attempt_closes_its_connection() -> None:
    async with serve(hang) as peer, make_executor(peer.url) as executor:
        attempt = asyncio.ensure_future(executor.execute(make_request(timeout=timedelta(minutes=1))))
        async with asyncio.timeout(PATIENCE):
            await peer.asked.wait()
            attempt.cancel()
            await asyncio.wait([attempt])
            assert attempt.cancelled()
            await peer.left.wait()


async def test_a_time_out_is_uncertain_and_closes_the_connection() -> None:
    async with serve(hang) as peer, make_executor(peer.url) as executor:
        answer = await executor.execute(make_request(timeout=timedelta(seconds=1)))
        assert answer == Uncertain("no answer within 1 s")
        async with asyncio.timeout(PATIENCE):
            await peer.left.wait()


async def test_waiting_in_line_for_a_connection_is_never_sent() -> None:
    async with serve(hang) as peer, make_executor(peer.url, concurrency=1) as executor:
        first = asyncio.ensure_future(executor.execute(make_request(timeout=timedelta(minutes=1))))
        async with asyncio.timeout(PATIENCE):
            await peer.asked.wait()
        answer = await executor.execute(make_request(key="call-2", timeout=timedelta(milliseconds=100)))
        assert answer == NeverSent("no connection within 0.1 s")
        first.cancel()
        await asyncio.wait([first], timeout=5)
    assert len(peer.seen) == 1


async def test_before_entering_and_after_leaving_nothing_is_sent() -> None:
    async with serve(answer_success) as peer:
        executor = make_executor(peer.url)
        assert isinstance(await executor.execute(make_request()), NeverSent)
        async with executor:
            assert isinstance(await executor.execute(make_request()), Answered)
        assert isinstance(await executor.execute(make_request()), NeverSent)
    assert len(peer.seen) == 1


async def test_leaving_ends_attempts_that_are_under_way() -> None:
    async with serve(hang) as peer:
        async with make_executor(peer.url) as executor:
            attempt = asyncio.ensure_future(executor.execute(make_request(timeout=timedelta(minutes=1))))
            async with asyncio.timeout(PATIENCE):
                await peer.asked.wait()
        async with asyncio.timeout(PATIENCE):
            assert isinstance(await attempt, Uncertain)


@pytest.mark.parametrize(
    "options",
    [
        {"url": "http://169.254.169.254/latest"},
        {"url": "http://0xa9fea9fe/latest"},
        {"url": "http://[::ffff:169.254.169.254]/"},
    ],
)
def test_a_configuration_that_can_never_work_is_an_operator_error(options: dict[str, Any]) -> None:
    with pytest.raises(OperatorError):
        make_executor(**options)


async def test_a_limit_that_expires_while_the_process_stands_still_does_not_blame_the_backend() -> None:
    async with serve(hang) as peer, make_executor(peer.url) as executor:
        executing = asyncio.ensure_future(executor.execute(make_request(timeout=timedelta(seconds=0.3))))
        # The request leaves; then nothing of this process runs, as after SIGSTOP.
        await asyncio.sleep(0.1)
        # The halt is the fault.
        time.sleep(1.5)  # noqa: ASYNC251
        answer = await executing
    assert isinstance(answer, Uncertain)
    assert "this process did not run for 1 s" in answer.reason
