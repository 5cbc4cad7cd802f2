"""A PostgreSQL server for tests: the one that is there, or one of our own that can be killed and started again.

`DRAGOMAN_TEST_POSTGRES_DSN` names a server to use; else the local one is tried, else one is started from the
installed programs. Where there is none, the tests are skipped and say what to install; with
`DRAGOMAN_TEST_NO_SKIPS` set, that is a failure.
"""

import asyncio
import atexit
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import asyncpg
import pytest

from tests.pace import PATIENCE
from tests.ports import free_port

_PATIENCE = 30.0
_MISSING = "there is no PostgreSQL server and none can be started: apt-get install postgresql"
_LOCAL = (
    "postgresql://postgres@127.0.0.1:5432/postgres",
    "postgresql:///postgres?host=/var/run/postgresql&user=postgres",
    "postgresql:///postgres?host=/var/run/postgresql",
)
_NUMBERS = count(1)


class OwnServer:
    """A server with a folder of its own, on one port for all its life; `start` it.

    One that copies another is its standby, until it is promoted.
    """

    def __init__(self, *, copy_of: "OwnServer | None" = None) -> None:
        self._programs = _programs()
        self._folder = make_folder()
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.dsn = f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
        if copy_of is None:
            subprocess.run(["cp", "-a", _new_data(), self._data], check=True, timeout=60)
        else:
            # With -R it knows whom to follow.
            _run("pg_basebackup", "-d", copy_of.dsn, "-D", self._data, "-R", "-c", "fast", "--no-sync")

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def start(self, **settings: str) -> None:
        """Start it, or start it again, and wait until it answers."""
        given = {"port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": "", **settings}
        options = [part for name, value in given.items() for part in ("-c", f"{name}={value}")]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                as_server([str(self._programs / "postgres"), "-D", self._data, *options]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        end = time.monotonic() + _PATIENCE
        while subprocess.run(self._ready, capture_output=True, check=False, timeout=_PATIENCE).returncode:
            if time.monotonic() > end or self._process.poll() is not None:
                raise AssertionError(f"the server does not start: {self.log()[-2000:]}")
            time.sleep(0.05)

    @property
    def _ready(self) -> list[str]:
        return [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-d", "postgres"]

    def log(self) -> str:
        """All that it has logged."""
        return (self._folder / "log").read_text(errors="replace")

    def promote(self) -> None:
        """Make a standby a server that takes writes."""
        _run("pg_ctl", "promote", "-D", self._data, "-w")

    def stop(self) -> None:
        """Stop it in order, as an upgrade does: clients are told to go."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(_PATIENCE)

    def kill(self) -> None:
        """Kill all its processes at once."""
        process, self._process = self._process, None
        if process is not None:
            children: list[int] = []
            if process.poll() is None:
                os.kill(process.pid, signal.SIGSTOP)
                children = _children(process.pid)
                for pid in children:
                    os.kill(pid, signal.SIGKILL)
            process.kill()
            process.wait(_PATIENCE)
            # Until they are dead, they hold the memory that a new server of this folder would share with them.
            end = time.monotonic() + _PATIENCE
            while any(map(_is_alive, children)) and time.monotonic() < end:
                time.sleep(0.01)

    def remove(self) -> None:
        """Kill it, and leave nothing of it."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def freeze(self) -> None:
        """Stop all its processes where they are: connections stay up, and nobody answers."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            # Workers come and go.
            with suppress(ProcessLookupError):
                os.kill(pid, number)


@contextmanager
def start_own_server(*, copy_of: OwnServer | None = None, **settings: str) -> Generator[OwnServer]:
    """Start a server of our own, and kill it at the end."""
    server = OwnServer(copy_of=copy_of)
    try:
        server.start(**settings)
        yield server
    finally:
        server.remove()


def dsn() -> str:
    """Find a server for the tests of this process, or start one; or skip the test."""
    return find_dsn() or _give_up()


@cache
def find_dsn() -> str | None:
    """Find a server, or start one; None where neither can be."""
    named = os.environ.get("DRAGOMAN_TEST_POSTGRES_DSN")
    if named:
        return named
    for local in _LOCAL:
        if _answers(local):
            return local
    if find_programs() is None:
        return None
    server = OwnServer()
    atexit.register(server.remove)
    server.start()
    return server.dsn


def new_schema() -> str:
    """Name a schema that no other test uses."""
    return f"test_{os.getpid()}_{next(_NUMBERS)}"


def temporary_schema() -> str:
    """Name a schema that is dropped when this process ends."""
    schema = new_schema()
    # Found before the handler is registered, so that a server of our own still runs when it is called.
    server = dsn()
    atexit.register(lambda: asyncio.run(drop_schema(schema, server=server)))
    return schema


async def rows_of(schema: str) -> list[tuple[Any, ...]]:
    """Read all rows of all tables of a schema."""
    connection = await reach(dsn())
    try:
        tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = $1", schema)
        return [
            tuple(row)
            for table in tables
            for row in await connection.fetch(f'SELECT * FROM "{schema}"."{table[0]}"')  # noqa: S608 - our own schema
        ]
    finally:
        await connection.close()


async def reach(server: str, database: str | None = None) -> "asyncpg.Connection[Any]":
    """Connect to a server, also to one that is just being started; to the database of its DSN, or another one."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await asyncpg.connect(server, timeout=10, database=database)
            except (ConnectionError, FileNotFoundError, asyncpg.CannotConnectNowError):
                await asyncio.sleep(0.1)


async def waited_for(connection: "asyncpg.Connection[Any]") -> None:
    """Wait until somebody waits for what the transaction of this connection has locked."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND transactionid = pg_current_xact_id()::xid"
    async with asyncio.timeout(PATIENCE):
        while not await connection.fetchval(waiting):  # noqa: ASYNC110 - a table shows it, and nobody tells
            await asyncio.sleep(0.01)


async def drop_schema(schema: str, *, server: str | None = None) -> None:
    """Remove a schema with everything in it."""
    connection = await reach(server or dsn())
    try:
        async with asyncio.timeout(60):
            while True:
                # The server still runs the last queries of a gateway that was killed, and may see a deadlock with them.
                with suppress(asyncpg.DeadlockDetectedError):
                    await connection.execute(
                        f'SET client_min_messages = warning; DROP SCHEMA IF EXISTS "{schema}" CASCADE'
                    )
                    return
    finally:
        await connection.close()


def find_programs() -> Path | None:
    """Find the folder of the newest installed server programs."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda one: int(one.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    folders = [*found, *([Path(on_path).resolve().parent] if on_path else [])]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


def _programs() -> Path:
    return find_programs() or _give_up()


@cache
def _new_data() -> str:
    """Make the data of a new server, once: copying it is much faster."""
    folder = make_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = str(folder / "data")
    _run("initdb", "-D", data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
    return data


def _run(program: str, *arguments: str) -> None:
    command = as_server([str(_programs() / program), *arguments])
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise AssertionError(f"{program} failed: {done.stderr}")


def _answers(server: str) -> bool:
    # By a program of its own, since this may be asked from inside an event loop.
    knock = "import asyncio, asyncpg, sys; asyncio.run(asyncpg.connect(sys.argv[1], timeout=3))"
    command = [sys.executable, "-W", "ignore", "-c", knock, server]
    return subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0


def _give_up() -> NoReturn:
    if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
        pytest.fail(_MISSING)
    pytest.skip(_MISSING)


def _server_user() -> pwd.struct_passwd | None:
    # PostgreSQL refuses to run as root.
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise AssertionError("there is no user to run PostgreSQL as: useradd postgres")


def as_server(command: list[str]) -> list[str]:
    """Have a command run as the user that servers are run as."""
    user = _server_user()
    if user is None:
        return command
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", *command]


def make_folder() -> Path:
    """Make a folder for that user, to be removed; pytest's own are closed to everybody else."""
    folder = Path(tempfile.mkdtemp(prefix="dragoman-postgres-"))
    user = _server_user()
    if user is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
