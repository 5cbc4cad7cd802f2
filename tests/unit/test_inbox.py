"""A session's inbox at its bounds."""

from gateway.ports.adapter import Frame
from gateway.runtime.inbox import Inbox
from gateway.runtime.signals import FrameArrived, Tick


class _Filled:
    def __init__(self, *, resumes: bool) -> None:
        self.overflows: list[str] = []
        self.weight = 0
        self.inbox = Inbox(frames=10, size=10_000, resumes=resumes, overflow=self.overflows.append, weighed=self._weigh)
        for number in range(20):
            self.inbox.put_frame(Frame("event", {"n": number}), str(number))

    def _weigh(self, size: int) -> None:
        self.weight += size


async def test_where_nothing_is_sent_again_all_small_frames_get_in_and_the_late_ones_are_marked():
    filled = _Filled(resumes=False)
    batch = await filled.inbox.take(100)
    assert [signal.overloaded for signal in batch if isinstance(signal, FrameArrived)] == [False] * 10 + [True] * 10
    assert filled.overflows == []
    assert filled.weight == 0


async def test_where_a_link_resumes_a_full_inbox_costs_the_link_and_takes_no_later_frame_from_it():
    filled = _Filled(resumes=True)
    batch = await filled.inbox.take(100)
    assert [signal.cursor for signal in batch if isinstance(signal, FrameArrived)] == [str(n) for n in range(10)]
    assert len(filled.overflows) == 1
    filled.inbox.put_frame(Frame("event", {}), "later")
    assert filled.inbox.empty
    filled.inbox.reopen()
    filled.inbox.put_frame(Frame("event", {}), "resumed")
    assert len(await filled.inbox.take(100)) == 1


async def test_signals_of_our_own_always_get_in():
    filled = _Filled(resumes=True)
    filled.inbox.put(Tick())
    assert isinstance((await filled.inbox.take(100))[-1], Tick)
