"""A lone call writes few pages to the SQLite database, because each page costs a write in each commit."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tests.engines.sqlite_log import Commits, PageLog
from tests.scenarios.environment import GOOD, ended, scene, until

CALLS = 17
COMMITS = (
    # The request.
    {"calls", "sqlite_autoindex_calls_1", "events", "sqlite_autoindex_events_1"},
    # The outcome.
    {"calls", "events", "sqlite_autoindex_events_1", "outbound"},
    # Its delivery.
    {"outbound"},
)
SOMETIMES = {"sqlite_schema", "sessions"}
"""The page with the size of the database, and a table with one change in many events."""
MOST = 10.5
"""Pages of a call: one of each table, and sometimes a new one."""


async def test_a_lone_call_writes_few_pages(tmp_path: Path) -> None:
    async with scene(tmp_path) as made, made.running():
        log, calls = PageLog(tmp_path / "dragoman.db"), list[Commits]()
        # The first call also changes the state of the session.
        for _ in range(1 + CALLS):
            log.look()
            assert (await ended(await made.agent.call("ask", GOOD))).outcome == "success"
            calls.append(await _commits(log))
    for commits in calls[1:]:
        assert tuple(set(pages) - SOMETIMES for pages in commits) == COMMITS
    assert fmean(sum(map(len, commits)) for commits in calls[1:]) <= MOST, calls


async def _commits(log: PageLog) -> Commits:
    """Wait for the request, the outcome and its delivery; a test write of the disk belongs to no call."""
    commits = list[Sequence[str]]()

    async def delivered() -> bool:
        own = ([page for page in pages if page != "probe"] for pages in log.look())
        commits.extend(pages for pages in own if pages)
        return len(commits) == len(COMMITS)

    await until(delivered)
    return commits
