"""What each answer of an executor means (gateway/executors/README.md#answers), row by row, on paper."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from hypothesis import given, strategies as st
from pydantic import AnyHttpUrl, SecretStr

from dragoman.hidden import Hidden
from gateway.events import Outcome
from gateway.events.response import Response
from gateway.executors.port import Accepted, Answer, Answered, NeverSent, NotProcessed, Replied, Uncertain, outcome_from
from gateway.executors.webhook.answers import MAX_BODY, MAX_TEXT, clean, read_answer, read_copied, read_retry_after
from gateway.executors.webhook.reader import AddressForbidden, ConnectionBroken, HttpAnswer, NotSent, Unread
from gateway.executors.webhook.sent import sent_to
from gateway.http.app import describe

NOW = datetime(2026, 11, 20, 12, 0, 0, tzinfo=UTC)
CALL = "tool.requested"
REPLY_KINDS = ["message.posted", "approval.asked", "question.asked"]


def received(
    status: int, body: Any = b"", *, content_type: str = "application/json", retry_after: str | None = None
) -> HttpAnswer:
    content = body if isinstance(body, bytes | Unread) else orjson.dumps(body)
    headers = {b"content-type": content_type.encode()}
    if retry_after is not None:
        headers[b"retry-after"] = retry_after.encode()
    return HttpAnswer(status, content, headers)


def read(exchange: Any, kind: str = CALL, *, raw: bool = False, hidden: tuple[str, ...] = ()) -> Answer:
    return read_answer(exchange, kind, raw=raw, now=lambda: NOW, hidden=Hidden(hidden))


def failed(answer: Answer) -> str:
    assert isinstance(answer, Answered)
    assert answer.outcome.outcome == "failure"
    assert answer.outcome.error
    return answer.outcome.error


def test_a_success_brings_its_result_and_updates() -> None:
    update = {"name": "table", "context": {"hand": ["7"]}, "description": "The hand"}
    answer = read(received(200, {"outcome": "success", "result": [1], "updates": [update], "wakes_agent": False}))
    assert isinstance(answer, Answered)
    assert answer.outcome.model_dump() == {"outcome": "success", "result": [1], "error": None, "unknown": False}
    assert [each.model_dump() for each in answer.updates] == [update]
    assert answer.wakes_agent is False


def test_members_that_nobody_knows_are_ignored_and_named() -> None:
    update = {"name": "table", "context": {"hand": ["7"]}, "version": 2}
    body = {"outcome": "success", "result": 1, "updates": [update], "trace_id": "t", "x" * 200: None}
    answer = read(received(200, body))
    assert isinstance(answer, Answered)
    assert (answer.outcome.outcome, answer.outcome.result) == ("success", 1)
    assert [each.name for each in answer.updates] == ["table"]
    assert answer.ignored == ("trace_id", "x" * 200, "updates/version")
    for wrong in ({"outcome": "success", "trace_id": "t"}, {**body, "trace_id": None}):
        with pytest.raises(ValueError, match="not permitted"):
            outcome_from(wrong, strict=True)


VALUES = st.sampled_from(
    ["success", "failure", "canceled", "expired", "", None, 0, 1.5, True, [], {"a": None}, b"success"]
)


def told(body: dict[str, Any], *, strict: bool) -> Any:
    try:
        return outcome_from(body, strict=strict)
    except ValueError as exc:
        return str(exc)


@given(body=st.dictionaries(st.sampled_from(["outcome", "result", "error"]), VALUES), strict=st.booleans())
def test_an_outcome_is_read_the_same_whatever_else_is_said(body: dict[str, Any], *, strict: bool) -> None:
    more: dict[str, Any] = {"updates": [], "wakes_agent": None}
    assert told(body, strict=strict) == told(body | more, strict=strict)


@pytest.mark.parametrize("outcome", ["failure", "canceled"])
def test_a_failure_or_cancel_is_final_and_keeps_its_text(outcome: str) -> None:
    answer = read(received(200, {"outcome": outcome, "error": "no such player"}))
    assert isinstance(answer, Answered)
    assert (answer.outcome.outcome, answer.outcome.error) == (outcome, "no such player")
    assert answer.wakes_agent is None


def test_a_failure_without_a_text_gets_one() -> None:
    assert failed(read(received(200, {"outcome": "failure"}))) == "executor answered failure without saying why"


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("exchange", [received(204), received(200), received(200, b" \r\n")])
def test_204_and_an_empty_200_are_success_without_a_result(exchange: HttpAnswer, *, raw: bool) -> None:
    answer = read(exchange, raw=raw)
    assert isinstance(answer, Answered)
    assert (answer.outcome.outcome, answer.outcome.result) == ("success", None)


@pytest.mark.parametrize("body", [{"cards": [1, 2]}, [1], "text", 7, None, {"outcome": "failure"}])
def test_raw_takes_the_whole_body_as_the_result(body: Any) -> None:
    answer = read(received(200, body), raw=True)
    assert isinstance(answer, Answered)
    assert (answer.outcome.outcome, answer.outcome.result) == ("success", body)


def test_202_is_accepted_for_a_call_only() -> None:
    assert read(received(202, {"outcome": "success"})) == Accepted()
    assert read(received(202, Unread.LOST)) == Accepted()
    for kind in REPLY_KINDS:
        assert "202" in failed(read(received(202), kind))


@pytest.mark.parametrize(
    ("exchange", "said"),
    [
        (received(200, b"<html>canary</html>", content_type="text/html"), "an HTML page that is not JSON"),
        (received(200, b"<html>canary</html>"), "an HTML page that is not JSON"),
        (received(200, b'{"outcome": NaN, "canary": 1}'), "not JSON"),
        (received(200, b"[" * 2_000), "not JSON"),
        (received(200, b"canary", content_type="text/plain"), r"\(text/plain\) that is not JSON"),
        (received(200, b"canary", content_type="can\rary"), "a body that is not JSON"),
        (received(200, {"cards": "canary"}), "not an outcome: /outcome"),
        (received(200, {"outcome": "done"}), "'success', 'failure' or 'canceled'"),
        (received(200, {"outcome": "expired"}), "'success', 'failure' or 'canceled'"),
        (received(200, {"outcome": "success", "updates": [{"name": "x"}]}), "/updates/0/context"),
        (received(200, ["canary"]), "got an array"),
        (received(200, b"null"), "got null"),
        (received(200, Unread.TOO_LARGE), "over the size limit"),
        (received(200, Unread.UNDECODABLE), "cannot be read"),
        (received(201, {"outcome": "success"}), "201 Created"),
        (received(206, b"x"), "206 Partial Content"),
        (received(299), "executor answered 299"),
    ],
)
@pytest.mark.parametrize("kind", [CALL, *REPLY_KINDS])
def test_a_2xx_without_a_readable_answer_is_uncertain_counts_as_refused_and_quotes_no_body(
    exchange: Any, said: str, kind: str
) -> None:
    answer = read(exchange, kind)
    if kind != CALL and isinstance(answer, Replied):
        # Another executor's reply; `outcome` means nothing here.
        assert exchange.status == 200
        return
    assert isinstance(answer, Uncertain)
    assert (answer.refused, answer.by_choice) == (True, True)
    assert kind != CALL or re.search(said, answer.reason), answer.reason
    assert "canary" not in answer.reason


MARK = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    "body",
    [MARK + b'{"outcome": "success", "result": 7}', MARK + b'\r\n{"outcome":"success","result":7}\r\n'],
)
def test_a_byte_order_mark_before_an_outcome_is_skipped(body: bytes) -> None:
    answer = read(received(200, body, content_type="application/json"))
    assert isinstance(answer, Answered)
    assert (answer.outcome.outcome, answer.outcome.result) == ("success", 7)
    assert read(received(200, MARK + b"7"), raw=True) == Answered(Outcome(outcome="success", result=7))
    assert read(received(200, MARK)) == Answered(Outcome(outcome="success"))
    assert read(received(200, MARK + b'{"decision": "deny"}'), "approval.asked") == Replied({"decision": "deny"})


def test_a_reply_that_repeats_a_member_decides_nothing() -> None:
    answer = read(received(200, b'{"decision": "deny", "decision": "allow"}'), "approval.asked")
    assert isinstance(answer, Uncertain)
    assert "that repeats a member" in answer.reason


@pytest.mark.parametrize("body", ['{"outcome": "success"}'.encode("utf-16"), b'{"outcome": "succ', b"\x1f\x8b\x08\x00"])
def test_a_2xx_in_another_encoding_or_cut_off_may_have_been_carried_out(body: bytes) -> None:
    answer = read(received(200, body))
    assert isinstance(answer, Uncertain)
    assert "executor answered 200 OK with a body" in answer.reason


@pytest.mark.parametrize("status", [200, 404, 429, 500])
def test_the_beginning_of_a_response_without_an_outcome_is_kept_without_our_secrets(status: int) -> None:
    secret = "whsec_canary_canary"
    body = b"x" * (MAX_BODY - 5) + secret.encode() + "ü".encode() * 9_000
    answer = read(received(status, body, content_type="text/plain; charset=utf-8"), hidden=(secret,))
    assert isinstance(answer, Answered | NotProcessed | Uncertain)
    assert answer.response == Response(status, "text/plain", "x" * (MAX_BODY - 5) + "***ü")
    assert answer.response is not None
    assert "canary" not in answer.response.body


def test_a_secret_is_masked_before_a_text_is_cut() -> None:
    secret = "whsec_canary_canary"
    assert clean(" " * (4 * MAX_TEXT - 5) + secret, hidden=Hidden((secret,))) == "***"


def test_a_response_that_was_lost_on_the_way_is_no_choice_of_the_executor() -> None:
    answer = read(received(200, Unread.LOST))
    assert isinstance(answer, Uncertain)
    assert (answer.by_choice, answer.refused) == (False, False)
    assert "the connection was lost or the time ran out" in answer.reason


@pytest.mark.parametrize("content_type", ["can\rary", "text/html\nx: y", "t/" + "x" * 50, "<b>", ""])
def test_a_content_type_that_is_none_is_not_kept(content_type: str) -> None:
    answer = read(received(500, b"broken", content_type=content_type))
    assert isinstance(answer, Uncertain)
    assert answer.response == Response(500, "", "broken")


def test_the_body_of_an_outcome_is_not_kept() -> None:
    for body in ({"outcome": "success", "result": "canary"}, {"outcome": "failure", "error": "no"}):
        answer = read(received(200, body))
        assert isinstance(answer, Answered)
        assert answer.response == Response(200)


@pytest.mark.parametrize("status", [404, 410, 500, 503])
def test_the_reason_of_a_copy_that_is_not_taken_has_the_detail(status: int) -> None:
    copied = read_copied(
        received(status, {"detail": "queue full of key-canary"}), now=lambda: NOW, hidden=Hidden(("key-canary",))
    )
    assert (copied.reason or "").endswith(": queue full of ***")


@pytest.mark.parametrize(
    ("exchange", "refused"),
    [
        *((received(status, {"detail": "why"}), True) for status in (401, 403, 405, 407, 415, 302)),
        *((received(status, {"detail": "why"}), False) for status in (400, 404, 410, 422)),
        (received(404, {"anything": 1}), False),
        (received(404, b"<html>Not Found</html>", content_type="text/html"), True),
        (received(404), True),
        (received(422, b"no"), True),
    ],
)
def test_a_wrong_setup_counts_as_refused_and_a_tools_own_4xx_does_not(exchange: HttpAnswer, refused: bool) -> None:
    answer = read(exchange)
    assert isinstance(answer, Answered)
    assert (answer.refused, answer.without_outcome) == (refused, True)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
def test_the_reason_of_every_other_refusal_has_the_detail_too(status: int) -> None:
    answer = read(received(status, {"detail": "database cards-2 is down"}))
    assert isinstance(answer, NotProcessed | Uncertain)
    assert answer.reason.endswith(": database cards-2 is down")


@pytest.mark.parametrize(
    ("exchange", "said"),
    [
        (received(301), "301 Moved Permanently; redirects are not followed"),
        (received(302), "302 Found; redirects"),
        (received(304), "304 Not Modified; redirects"),
        (received(308), "308 Permanent Redirect; redirects"),
        (AddressForbidden("its address is link-local"), "cannot be reached: its address is link-local"),
    ],
)
def test_an_answer_without_a_usable_outcome_is_a_final_failure_that_quotes_no_body(exchange: Any, said: str) -> None:
    text = failed(read(exchange))
    assert "executor" in text
    assert re.search(said, text), text
    assert "canary" not in text


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 406, 410, 411, 413, 415, 422, 451, 499])
@pytest.mark.parametrize("kind", [CALL, "approval.asked"])
def test_other_4xx_are_final_failures(status: int, kind: str) -> None:
    assert f"executor answered {status}" in failed(read(received(status, b"canary"), kind))
    assert "canary" not in failed(read(received(status, b"canary"), kind))


@pytest.mark.parametrize(
    ("exchange", "said"),
    [
        (received(422, {"detail": "no such player"}, content_type="application/problem+json"), ": no such player"),
        (received(404, {"title": "Gone fishing"}, content_type="application/problem+json"), ": Gone fishing"),
        (received(404, {"detail": "plain JSON"}), ": plain JSON"),
        (received(422, {"detail": [{"msg": "canary"}]}), "422 Unprocessable Entity"),
        (received(404, {"detail": "canary"}, content_type="text/html"), "404 Not Found"),
        (received(404, b"{canary", content_type="application/problem+json"), "404 Not Found"),
        (received(404, Unread.TOO_LARGE, content_type="application/problem+json"), "404 Not Found"),
    ],
)
def test_the_text_of_a_4xx_comes_from_problem_json_where_there_is_some(exchange: HttpAnswer, said: str) -> None:
    text = failed(read(exchange))
    # HTTPStatus renamed 422 in Python 3.13.
    assert text.endswith((said, said.replace("Entity", "Content")))
    assert "canary" not in text


def test_a_detail_is_one_bounded_line_without_our_secrets() -> None:
    body = {"detail": "bad key s3cret-canary\n\x1b[31m" + "x" * 10_000}
    text = failed(read(received(401, body), hidden=("s3cret-canary",)))
    assert text.startswith("executor answered 401 Unauthorized: bad key ***")
    assert len(text) == MAX_TEXT
    assert text.isprintable()


def test_a_secret_at_the_cut_is_hidden_before_cutting() -> None:
    body = {"detail": "x" * (MAX_TEXT - 40) + "s3cret-canary" * 3}
    assert "s3cret" not in failed(read(received(401, body), hidden=("s3cret-canary",)))


def test_a_member_name_that_is_a_secret_or_endless_is_not_quoted() -> None:
    body = {"outcome": "success", "s3cret-canary" + "y" * 5_000: 1}
    answer = read(received(200, body), hidden=("s3cret-canary",))
    assert isinstance(answer, Answered)
    (name,) = answer.ignored
    assert "s3cret" not in name
    assert len(name) <= MAX_TEXT


@pytest.mark.parametrize("kind", [CALL, *REPLY_KINDS])
@pytest.mark.parametrize(
    ("exchange", "wait"),
    [
        (received(425), None),
        (received(429), None),
        (received(429, retry_after="7"), 7),
        (received(429, retry_after="soon"), None),
        (received(503, retry_after="0"), 0),
        (received(503, retry_after="Fri, 20 Nov 2026 12:00:30 GMT"), 30),
    ],
)
def test_425_429_and_503_with_retry_after_were_not_processed(exchange: HttpAnswer, wait: int | None, kind: str) -> None:
    answer = read(exchange, kind)
    assert isinstance(answer, NotProcessed)
    assert answer.retry_after == (None if wait is None else timedelta(seconds=wait))


@pytest.mark.parametrize("kind", [CALL, *REPLY_KINDS])
@pytest.mark.parametrize(
    "exchange",
    [
        received(408),
        received(409, b"canary"),
        received(500),
        received(502, retry_after="5"),
        received(503),
        received(503, retry_after="soon"),
        received(504),
        received(599),
        received(999),
        received(101),
        received(200, Unread.LOST),
        ConnectionBroken("the connection was lost before a response arrived"),
    ],
)
def test_what_may_have_been_carried_out_is_uncertain(exchange: Any, kind: str) -> None:
    answer = read(exchange, kind)
    assert isinstance(answer, Uncertain)
    assert "canary" not in answer.reason


def test_what_never_left_was_never_sent() -> None:
    assert read(NotSent("no connection: Connection refused")) == NeverSent("no connection: Connection refused")


@pytest.mark.parametrize("kind", REPLY_KINDS)
def test_secrets_that_were_sent_are_masked_in_the_error_of_a_reply(kind: str) -> None:
    hidden = sent_to(AnyHttpUrl("https://h/x?token=aaaa-canary"), [SecretStr("whsec_secret")], {})
    answer = read_answer(
        received(200, {"delivered": False, "error": "no aaaa-canary"}), kind, now=lambda: NOW, hidden=hidden
    )
    assert answer == Replied({"delivered": False, "error": "no ***"})


@pytest.mark.parametrize("kind", REPLY_KINDS)
def test_a_reply_is_any_json_object_and_an_empty_body_an_empty_one(kind: str) -> None:
    assert read(received(200, {"decision": "allow", "scope": "once"}), kind, raw=True) == Replied(
        {"decision": "allow", "scope": "once"}
    )
    assert read(received(200), kind) == Replied({})
    assert read(received(204), kind) == Replied({})


@pytest.mark.parametrize("kind", REPLY_KINDS)
@pytest.mark.parametrize("body", [b"[1]", b"null", b'"allow"', b"<html>", b"{"])
def test_a_reply_that_is_no_object_is_uncertain(kind: str, body: bytes) -> None:
    answer = read(received(200, body), kind)
    assert isinstance(answer, Uncertain)
    assert "executor answered 200 OK with" in answer.reason


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0),
        (" 12 ", 12),
        ("99999", 3600),
        ("9" * 5_000, 3600),
        ("Fri, 20 Nov 2026 12:01:00 GMT", 60),
        ("Friday, 20-Nov-26 12:01:00 GMT", 60),
        ("Fri Nov 20 12:01:00 2026", 60),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0),
        ("Fri, 20 Nov 2099 12:00:00 GMT", 3600),
        (None, None),
        ("", None),
        ("-5", None),
        ("1.5", None),
        ("١٢", None),
        ("soon", None),
        ("Fri, 99 Nov 2026 12:00:00 GMT", None),
        ("Fri, 20 Nov 99999 12:00:00 GMT", None),
        ("Fri, 20 Nov 2026 12:00:00 +9999999999", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_bounded(header: str | None, seconds: int | None) -> None:
    wait = read_retry_after(header, now=NOW)
    assert wait == (None if seconds is None else timedelta(seconds=seconds))


@pytest.mark.parametrize(
    ("exchange", "state"),
    [
        (received(200, b"<html>"), "delivered"),
        (received(202), "delivered"),
        (received(204, Unread.LOST), "delivered"),
        (received(299, Unread.TOO_LARGE), "delivered"),
        (received(410), "gone"),
        (received(301), "refused"),
        (received(400), "refused"),
        (received(404), "refused"),
        (received(408), "again"),
        (received(409), "again"),
        (received(425), "again"),
        (received(429), "again"),
        (received(500), "again"),
        (received(503), "again"),
        (NotSent("no connection"), "unsent"),
        (ConnectionBroken("lost"), "again"),
        (AddressForbidden("its address is link-local"), "refused"),
    ],
)
def test_a_copy_is_delivered_gone_refused_or_tried_again(exchange: Any, state: str) -> None:
    copied = read_copied(exchange, now=lambda: NOW)
    assert copied.state == state
    assert (copied.reason is None) == (state == "delivered")


def test_a_copy_is_tried_again_when_the_destination_says() -> None:
    copied = read_copied(received(503, retry_after="90"), now=lambda: NOW)
    assert copied.retry_after == timedelta(seconds=90)


def test_secrets_that_were_sent_are_masked_in_an_error_and_left_alone_in_a_result() -> None:
    secret = "header-canary-1"
    for body, shown in (
        (b'{"outcome": "failure", "error": "bad key header-canary-1"}', "bad key ***"),
        (b'{"outcome": "success", "error": "bad key header-canary-1"}', "bad key ***"),
        (b'{"outcome": "success", "result": "header-canary-1"}', secret),
    ):
        received = HttpAnswer(200, body, {b"content-type": b"application/json"})
        answer = read_answer(received, "tool.requested", now=lambda: NOW, hidden=Hidden([secret]))
        assert isinstance(answer, Answered)
        assert (answer.outcome.error or answer.outcome.result) == shown


@pytest.mark.parametrize(
    "quoted",
    [
        "POST /x?token=aaaa%2Fbbbb%2Bcccc%3D%3D&also=s%61me-canary HTTP/1.1",
        "POST /x?token=aaaa%2fbbbb%2bcccc%3d%3d&also=same-canary HTTP/1.1",
        "POST /x?token=aaaa%2fbbbb%2Bcccc%3d%3D HTTP/1.1",
        "POST /x?token=aaaa/bbbb%2Bcccc== HTTP/1.1",
        'headers were {"x-realm": "the \\"bbbb\\" realm"}',
        "url was http://me:%40bbbb%2f%3acccc@h/",
    ],
)
def test_what_was_sent_is_masked_in_an_error_in_percent_and_json_form(quoted: str) -> None:
    url = AnyHttpUrl("https://me:%40bbbb%2F%3Acccc@h/x?token=aaaa%2Fbbbb%2Bcccc%3D%3D&also=s%61me-canary&lang=de%2Fch")
    hidden = sent_to(url, [SecretStr("whsec_secret")], {"x-realm": 'the "bbbb" realm'})
    for exchange in (received(200, {"outcome": "failure", "error": quoted}), received(400, {"detail": quoted})):
        answer = read_answer(exchange, CALL, now=lambda: NOW, hidden=hidden)
        text = failed(answer)
        assert "***" in text
        assert not re.search("aaaa|bbbb|cccc|canary", text)
    assert hidden.may_be_in(json.dumps(quoted).encode())
    assert hidden.mask("no lang=de%2Fch, nor de/ch") == "no lang=de%2Fch, nor de/ch"


@pytest.mark.parametrize("kind", [CALL, *REPLY_KINDS])
def test_the_document_says_of_each_status_whether_it_is_tried_again(kind: str) -> None:
    described = describe("9.9.9").openapi()["webhooks"][kind]["post"]["responses"]
    for status in range(400, 600):
        text = described.get(str(status), described[f"{status // 100}XX"])["description"]
        match read(received(status, retry_after="1"), kind):
            case NotProcessed():
                assert "ot processed" in text, status
                assert "the gateway retries" in text, status
            case Uncertain():
                assert text.startswith("Retried if the executor is `idempotent`, otherwise "), status
            case answer:
                assert failed(answer)
                assert "retri" not in text.lower(), status
        assert ("failure" in text) <= (kind == CALL), "of a question nobody is told a failure"
