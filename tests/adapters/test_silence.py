"""Links of which nothing comes any more: each has its own time, and all of them one timer."""

import asyncio

from gateway.guard import FAULTS
from gateway.links.socketio.silence import Silence, silence_here


class Link:
    """A link that notes when it fell silent."""

    def __init__(self, *, fails: bool = False) -> None:
        self.silent_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._fails = fails

    def fall_silent(self) -> None:
        self.silent_at.set_result(asyncio.get_running_loop().time())
        if self._fails:
            raise RuntimeError("wrong for once")


async def test_each_link_has_its_own_time_whichever_was_heard_first() -> None:
    silence, begun = Silence(), asyncio.get_running_loop().time()
    slow, fast = Link(), Link()
    silence.hear(slow.fall_silent, 0.12)
    silence.hear(fast.fall_silent, 0.03)
    assert await asyncio.wait_for(fast.silent_at, 5) >= begun + 0.03
    assert not slow.silent_at.done()
    assert await asyncio.wait_for(slow.silent_at, 5) >= begun + 0.12


async def test_who_is_heard_again_has_its_whole_time_again_and_who_has_ended_is_told_nothing() -> None:
    silence, ended, heard = Silence(), Link(), Link()
    silence.hear(ended.fall_silent, 0.02)
    silence.hear(heard.fall_silent, 0.02)
    silence.forget(ended.fall_silent)
    again = asyncio.get_running_loop().time()
    silence.hear(heard.fall_silent, 0.08)
    assert await asyncio.wait_for(heard.silent_at, 5) >= again + 0.08
    assert not ended.silent_at.done()


async def test_a_link_that_fails_as_it_ends_keeps_no_other_one() -> None:
    silence, failing, others = Silence(), Link(fails=True), (Link(), Link())
    before = FAULTS.total["link"]
    silence.hear(failing.fall_silent, 0.01)
    for patience, other in zip((0.01, 0.05), others, strict=True):
        silence.hear(other.fall_silent, patience)
    for other in others:
        await asyncio.wait_for(other.silent_at, 5)
    assert FAULTS.total["link"] == before + 1


async def test_all_links_of_a_loop_are_looked_after_together() -> None:
    assert silence_here() is silence_here()
