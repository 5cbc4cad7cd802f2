"""`python -m tests.bench.walk`: the files and functions that one HUMA tool call passes, here and in the release before.

One agent, one webhook, one gateway process with the SQLite engine. Counted is what every one of several calls passes,
from its frame until its result is settled; what else goes on in a gateway differs from call to call.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median_low

from rich.console import Console
from rich.table import Table

from tests.ports import free_port
from tests.scenarios.environment import GOOD, ended, scene
from tests.scenarios.releases import NO_HISTORY, THIS, VERSION, Release, find_release_before
from tests.scenarios.replica_processes import Serving, fleet

CALLS = 7
SETTLED = 0.6
"""Seconds from a result to its settlement, which no event tells outside: the delivery window, and as much again."""
_TASK = ("base_events.py", "BaseEventLoop.create_task")
_TURN = ("base_events.py", "BaseEventLoop._run_once")
_ROWS = {"turns": "wake-ups of the event loop"}
_COMMITS = "dragoman_journal_commit_seconds_count"


@dataclass(frozen=True)
class Walked:
    """What a call passes."""

    files: Sequence[str]
    functions: Sequence[str]
    tasks: int
    commits: int
    turns: int
    """How often the event loop woke up, from the frame until what is timed behind the result has had its turn."""


async def walk(release: Release, folder: Path) -> Walked:
    """Let a gateway of a release answer calls, and look at what it does."""
    port = free_port()
    watched = replace(release, program=("-P", str(Path(__file__).with_name("walked.py")), str(port)))
    engine = {"type": "sqlite", "path": str(folder / "walk.db")}
    async with scene(folder, "0.2") as made, fleet(made, engine=engine) as processes:
        gateway = await processes.serve("walked", release=watched)
        await made.agent.wait_connected()
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)

        async def tell(word: str) -> list[tuple[str, str, int]]:
            writer.write(f"{word}\n".encode())
            return json.loads(await reader.readline())

        walks: list[list[tuple[str, str, int]]] = []
        commits: list[int] = []
        # The first calls read what is kept from then on.
        for number in range(2 + CALLS):
            before = await _commits(gateway)
            await tell("start")
            assert (await ended(await made.agent.call("ask", GOOD))).outcome == "success"
            await asyncio.sleep(SETTLED)
            passed = await tell("stop")
            if number >= 2:
                walks.append(passed)
                commits.append(await _commits(gateway) - before)
        writer.close()
    own = [{_name(file, name, release.folder) for file, name, _ in passed} - {""} for passed in walks]
    functions = sorted(set[str].intersection(*own))
    files = sorted({name.partition(":")[0] for name in functions})
    tasks, turns = (min(_count(passed, which) for passed in walks) for which in (_TASK, _TURN))
    return Walked(files, functions, tasks, median_low(commits), turns)


def _count(passed: Sequence[tuple[str, str, int]], which: tuple[str, str]) -> int:
    return sum(times for file, name, times in passed if (Path(file).name, name) == which)


def _name(file: str, name: str, folder: Path) -> str:
    """Name a function of the product; what a comprehension or a lambda is made of counts as its function's."""
    path = Path(file)
    if not path.is_relative_to(folder):
        return ""
    inside = path.relative_to(folder)
    if inside.parts[0] not in {"gateway", "adapters"}:
        return ""
    return f"{inside}:{name.partition('.<locals>.<')[0]}"


async def _commits(gateway: Serving) -> int:
    return int((await gateway.metrics())[_COMMITS])


async def _walk_both() -> dict[str, Walked]:
    found = dict[str, Walked]()
    for name, release in (("this", THIS), (VERSION, find_release_before())):
        if release is None:
            sys.stderr.write(f"{NO_HISTORY}\n")
            continue
        with tempfile.TemporaryDirectory() as folder:
            found[name] = await walk(release, Path(folder))
    return found


def main(arguments: list[str] | None = None) -> int:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.walk", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every name there")
    asked = parser.parse_args(arguments)
    found = asyncio.run(_walk_both())
    table = Table("one HUMA tool call passes", *found, title=f"Python {sys.version.split()[0]}")
    for what in ("files", "functions", "tasks", "commits", "turns"):
        values = [getattr(one, what) for one in found.values()]
        table.add_row(
            _ROWS.get(what, what), *(str(value if isinstance(value, int) else len(value)) for value in values)
        )
    Console().print(table)
    if asked.json is not None:
        asked.json.write_text(json.dumps({name: asdict(one) for name, one in found.items()}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
