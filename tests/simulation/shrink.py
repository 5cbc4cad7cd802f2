"""Shortens a failing run: removes steps as long as the same promise breaks."""

import os
from collections.abc import Callable

from tests.simulation.world import Story, run

_MOST_CPU = 300
"""Seconds of CPU after which the shortest run so far will do."""


def shrink(seed: int, steps: int, story: Story, tell: Callable[[str], None]) -> tuple[list[int], Story]:
    """Return the steps that are left, and their story; `tell` gets a line for each shorter run."""
    promise = promise_of(story)
    kept, size, runs = [*range(steps)], (steps + 1) // 2, 0
    until = cpu() + _MOST_CPU
    while size and cpu() < until:
        start = 0
        while start < len(kept) and cpu() < until:
            tried = kept[:start] + kept[start + size :]
            runs += 1
            found = run(seed, steps, frozenset(tried))
            if promise_of(found) == promise:
                kept, story = tried, found
                tell(f"{len(kept)} steps after {runs} runs")
            else:
                start += size
        size //= 2
    return kept, story


def cpu() -> float:
    """Return the seconds of CPU of this process and of its runs."""
    return sum(os.times()[:4])


def promise_of(story: Story) -> str:
    """Return how a run names the promise that broke first; empty if none broke."""
    return story.broken[0].partition(":")[0] if story.broken else ""
