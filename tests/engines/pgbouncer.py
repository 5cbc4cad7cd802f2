"""A PgBouncer for tests, in transaction mode in front of the server that tests use."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.engines import postgres_server
from tests.ports import free_port

_MISSING = "there is no pgbouncer: apt-get install pgbouncer"


@contextmanager
def start_pooler(*, connections: int = 2) -> Generator[str]:
    """Start PgBouncer with so many connections to the server for everybody; answers the DSN."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        if os.environ.get("DRAGOMAN_TEST_NO_SKIPS"):
            pytest.fail(_MISSING)
        pytest.skip(_MISSING)
    port = free_port()
    parts = urlsplit(postgres_server.dsn())
    user = parts.username or parse_qs(parts.query).get("user", ["postgres"])[0]
    host = parts.hostname or parse_qs(parts.query)["host"][0]
    password = f" password={parts.password}" if parts.password else ""
    folder = postgres_server.make_folder()
    (folder / "users").write_text(f'"{user}" "{parts.password or ""}"\n')
    config = folder / "pgbouncer.ini"
    config.write_text(
        f"[databases]\n* = host={host} port={parts.port or 5432} user={user}{password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"auth_file = {folder / 'users'}\npool_mode = transaction\ndefault_pool_size = {connections}\n"
        "max_client_conn = 200\n"
    )
    command = postgres_server.as_server([program, str(config)])
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"postgresql://{user}@127.0.0.1:{port}{parts.path}"
        process.terminate()
        process.wait(10)
    finally:
        process.kill()
        shutil.rmtree(folder)
