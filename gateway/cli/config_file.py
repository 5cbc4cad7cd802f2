"""Selects the configuration file of a command: the given one, or the first in the usual places."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.errors import OperatorError

DEFAULT_FILES = (Path("gateway.yaml"), Path("config/gateway.yaml"))
"""The usual places, searched in this order if no file is given."""
SHOWN_DEFAULT = "gateway.yaml, else config/gateway.yaml"

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="DRAGOMAN_CONFIG",
        help="The configuration file.",
        show_default=SHOWN_DEFAULT,
        # The loader reports unreadable files with a better text than click, also those in the usual places.
        readable=False,
    ),
]


def choose(given: Path | None) -> Path:
    """Return the given file, or the first that exists in the usual places.

    Raises:
        OperatorError: there is none.
    """
    if given is not None:
        return given
    for path in DEFAULT_FILES:
        if path.is_file():
            return path
    looked = " nor ".join(str(path) for path in DEFAULT_FILES)
    raise OperatorError(f"no configuration: neither {looked} exists here; pass a file, or set DRAGOMAN_CONFIG")
