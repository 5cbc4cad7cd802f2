"""A long answer is parsed event by event, so that no single parse needs the memory of the whole."""

import mmap
import resource
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.links import json
from gateway.links.frame_memory import FRAMES
from gateway.strict_json import Malformed, Unreadable, read_strictly

MEGABYTE = 1024 * 1024


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all texts given to the parser."""
    lengths: list[int] = []
    loads = orjson.loads

    def record(text: str | bytes) -> Any:
        lengths.append(len(text))
        return loads(text)

    monkeypatch.setattr(orjson, "loads", record)
    return lengths


@pytest.mark.parametrize("around", ["%s", '{"total": 5, "events": %s, "more": {"next": null}}'])
async def test_a_long_answer_is_parsed_event_by_event(around: str, parsed: list[int]) -> None:
    events = [{"id": number, "text": f'{number} "{{[' * (MEGABYTE // 4)} for number in range(6)]
    content = (around % orjson.dumps(events).decode()).encode()
    assert len(content) > json.AT_ONCE
    assert await json.read_answer(content) == orjson.loads(content)
    assert max(parsed[:-1]) < json.AT_ONCE


async def test_an_event_over_the_bound_costs_only_itself(parsed: list[int]) -> None:
    events = [{"id": 1}, {"id": 2, "text": "x" * json.AT_ONCE}, {"id": 3}]
    answer = await json.read_answer(orjson.dumps({"events": events}))
    first, large, last = answer["events"]
    assert (first, last) == ({"id": 1}, {"id": 3})
    assert isinstance(large, Malformed)
    assert f"{json.AT_ONCE:,} are allowed" in large.reason
    assert max(parsed) < json.AT_ONCE


async def test_an_event_may_be_as_long_as_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FRAMES.get(), "largest", 2 * json.AT_ONCE)
    events = [{"text": "x" * json.AT_ONCE}, {"id": 2}]
    assert await json.read_answer(orjson.dumps(events)) == events


@contextmanager
def limited(spare: int) -> Generator[None]:
    """Limit the address space of this process to what it has now and `spare` bytes more."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    has = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (has + spare, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_a_text_whose_memory_cannot_be_reserved_is_refused_before_it_is_parsed(parsed: list[int]) -> None:
    # More than the heap may have kept free of the tests before.
    text = orjson.dumps({"text": "x" * 24 * MEGABYTE})
    with limited(spare=32 * MEGABYTE):
        with pytest.raises(Unreadable, match="more memory") as caught:
            read_strictly(text)
        frame, written = json.read_frame(text)
    assert caught.value.fault == "memory"
    assert (frame, written) == (Malformed("needs more memory than the process has", json.excerpt(text)), None)
    assert parsed == []
    assert read_strictly(text)["text"].startswith("x")
