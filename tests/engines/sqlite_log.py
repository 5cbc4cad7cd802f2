"""Reads the pages that each commit writes from the write-ahead log of a SQLite database, by table and index."""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from gateway.store.sqlite.lock import sibling

_HEAD, _FRAME_HEAD = 32, 24
Commits = Sequence[Sequence[str]]


class PageLog:
    """The log of a database that is in use; no checkpoint may restart the log between two looks."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._seen = len(self._read())

    def look(self) -> Commits:
        """Return the names of the pages of each commit since the last look; `sqlite_schema` has the first page."""
        commits = self._read()
        fresh, self._seen = commits[self._seen :], len(commits)
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=5)) as connection:
            owners = dict(connection.execute("SELECT pageno, name FROM dbstat").fetchall())
        return [sorted(owners.get(page, "free") for page in pages) for pages in fresh]

    def _read(self) -> list[list[int]]:
        log = sibling(self._database, "-wal").read_bytes()
        size, salt = int.from_bytes(log[8:12]), log[16:24]
        commits: list[list[int]] = []
        pages: list[int] = []
        for start in range(_HEAD, len(log), _FRAME_HEAD + size):
            frame = log[start : start + _FRAME_HEAD]
            if frame[8:16] != salt:
                # A frame from before the last checkpoint.
                break
            pages.append(int.from_bytes(frame[:4]))
            # The last frame of a commit has the size of the database.
            if frame[4:8] != bytes(4):
                commits.append(pages)
                pages = []
        return commits
