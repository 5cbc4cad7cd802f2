"""What all tests share: an end to what hangs, choosing tests by protocol rule, their order, patience with a machine."""

import faulthandler
import gc
import logging
import os
import signal
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import NoReturn, cast

import pytest
import structlog
from hypothesis import HealthCheck, settings

from gateway.runtime import log
from tests.requirements import REQUIREMENTS

pytest_plugins = ["tests.reaper"]

# Wall-clock limits say more about the machine than about the code.
settings.register_profile("dragoman", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("dragoman")

LIMIT, SLOW_LIMIT = 120.0, 600.0
"""Seconds that one test may take at most, its fixtures apart; the second one for what `make faults` runs."""
_ALLOCATIONS = 20_000
"""New objects between two looks for garbage; with the usual 700, parsing all modules takes four times as long."""
_AGAIN = 5.0
_ENDING = 60.0
# These two Python itself ignores, and Popen gives them back to children.
_OURS = {signal.SIGPIPE, signal.SIGXFSZ}


def pytest_configure() -> None:
    """Let children hear each signal: what a parent ignores or blocks (nohup, a job in the background), children do too.

    This process goes on as if it ignored them: a signal with a handler has its default meaning again behind an exec.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in signal.valid_signals() - _OURS:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, _overhear)
    gc.disable()


def pytest_collection_finish() -> None:
    """Look for no garbage among modules and tests, which stay until the end."""
    gc.freeze()
    gc.set_threshold(_ALLOCATIONS)
    gc.enable()


def pytest_unconfigure() -> None:
    """A thread that a test has left behind must not keep the process."""
    faulthandler.dump_traceback_later(_ENDING, exit=True)


def _overhear(*_: object) -> None:
    """Do nothing."""


def _too_long(*_: object) -> NoReturn:
    pytest.fail("this takes too long")


@contextmanager
def _limit(item: pytest.Item) -> Generator[None]:
    before = signal.signal(signal.SIGALRM, _too_long)
    # Again and again, since a loop may take the first for the failure of some task.
    signal.setitimer(signal.ITIMER_REAL, SLOW_LIMIT if _is_slow(item) else LIMIT, _AGAIN)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    with _limit(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    with _limit(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    with _limit(item):
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--requirement",
        action="append",
        default=[],
        metavar="ID",
        help="run only the tests that carry this rule, e.g. L40",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = set(cast("list[str]", config.getoption("--requirement")))
    unknown = wanted - REQUIREMENTS.keys()
    if unknown:
        raise pytest.UsageError(f"no such rule in tests/requirements.py: {', '.join(sorted(unknown))}")
    if wanted:
        kept = [
            item for item in items if wanted & {name for mark in item.iter_markers("requirement") for name in mark.args}
        ]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    items[:] = _deal(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _deal(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Give each worker files with slow tests to start with: a slow test that is the last one leaves all others idle.

    Files with few tests come first, because other workers can take over the many tests of a file one by one.
    """
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    files.sort(key=lambda tests: (not any(_is_slow(item) for item in tests), len(tests)))
    # A worker starts with its part of the list, and takes over tests of others at the end.
    return [item for worker in range(workers) for tests in files[worker::workers] for item in tests]


def _is_slow(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(mark) for mark in ("faults", "slow"))


@pytest.fixture(autouse=True)
def _logging_restored() -> Iterator[None]:
    """A gateway sets up logging for its whole process."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    levels = {name: logger.level for name, logger in _loggers()}
    yield
    if structlog.is_configured():
        log.configure()
        root.setLevel(level)
        root.handlers[:] = handlers
        for name, logger in _loggers():
            logger.setLevel(levels.get(name, logging.NOTSET))
        structlog.reset_defaults()


def _loggers() -> list[tuple[str, logging.Logger]]:
    known = logging.root.manager.loggerDict.items()
    return [(name, logger) for name, logger in known if isinstance(logger, logging.Logger)]
