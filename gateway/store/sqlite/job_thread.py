"""The thread of the SQLite writer: it takes the queued jobs and has them written."""

from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from queue import Empty, SimpleQueue
from threading import Thread

from gateway.store.sqlite.jobs import Job


class JobThread:
    """Runs a writer: `begin` once, `write` while jobs wait, `end` always."""

    def __init__(
        self, begin: Callable[[], bool], write: Callable[[deque[Job]], None], end: Callable[[deque[Job]], None]
    ) -> None:
        """Prepare without starting; `begin` returns whether there is anything to write to."""
        self._begin, self._write, self._end = begin, write, end
        self._queue: SimpleQueue[Sequence[Job] | None] = SimpleQueue()
        self._thread = Thread(target=copy_context().run, args=(self._run,), name="dragoman-sqlite-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, jobs: Sequence[Job] | None) -> None:
        """Queue jobs; None ends the thread after them."""
        self._queue.put(jobs)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def rest(self) -> Sequence[Job]:
        """Take the jobs that were queued after the end."""
        jobs: list[Job] = []
        while not self._queue.empty():
            jobs += self._queue.get_nowait() or ()
        return jobs

    def _run(self) -> None:
        waiting: deque[Job] = deque()
        try:
            is_open = self._begin()
            while is_open or waiting:
                if is_open:
                    is_open = self._gather(waiting)
                self._write(waiting)
        finally:
            self._end(waiting)

    def _gather(self, waiting: deque[Job]) -> bool:
        """Move queued jobs over; wait only if there are none. False ends the thread."""
        try:
            while True:
                jobs = self._queue.get_nowait() if waiting else self._queue.get()
                if jobs is None:
                    return False
                waiting.extend(jobs)
        except Empty:
            return True
