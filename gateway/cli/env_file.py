"""Reads `.env` of the folder where a command is started, as docker compose does."""

from io import StringIO
from pathlib import Path

from gateway.cli.terminal import complain

FILE = Path(".env")
MOST_BYTES = 64 * 1024


def read_env_file() -> None:
    """Take variables from `.env`, where there is one; what the environment says already stays as it is."""
    if not FILE.is_file():
        return
    from dotenv import load_dotenv

    try:
        with FILE.open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES:,} bytes")
        load_dotenv(stream=StringIO(raw.decode()))
    except OSError as exc:
        complain(f"{FILE} is left out: {exc.strerror}")
    except ValueError as exc:
        complain(f"{FILE} is left out: {exc}")
