"""A lone call writes few pages to the SQLite database, because each page costs a write in each commit."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median_low

from tests.engines.sqlite_log import Commits, PageLog
from tests.scenarios.environment import GOOD, ended, scene, until

CALLS = 9
MOST = 14


async def test_a_lone_call_writes_few_pages(tmp_path: Path) -> None:
    async with scene(tmp_path) as made, made.running():
        log, calls = PageLog(tmp_path / "dragoman.db"), list[Commits]()
        # The first call also writes what later calls find.
        for _ in range(1 + CALLS):
            log.look()
            assert (await ended(await made.agent.call("ask", GOOD))).outcome == "success"
            calls.append(await _commits(log))
    # Half of the calls begin a new page of a table.
    assert median_low([sum(map(len, commits)) for commits in calls[1:]]) <= MOST, calls


async def _commits(log: PageLog) -> Commits:
    """Wait for the request, the outcome and its delivery; a test write of the disk belongs to no call."""
    commits = list[Sequence[str]]()

    async def delivered() -> bool:
        commits.extend(pages for pages in log.look() if pages != ["probe"])
        return len(commits) == 3

    await until(delivered)
    return commits
