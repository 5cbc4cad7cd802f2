"""Says which configuration file a command uses: the one that is named, or the one that lies about."""

from pathlib import Path
from typing import Annotated

import typer

from gateway.errors import OperatorError

DEFAULT_FILES = (Path("gateway.yaml"), Path("config/gateway.yaml"))
"""Where a configuration is looked for when none is named."""
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
        # Whoever reads it says better what is wrong, and alike of a file that lies about.
        readable=False,
    ),
]


def choose(given: Path | None) -> Path:
    """Pick the file.

    Raises:
        OperatorError: none is named, and none is in its usual place.
    """
    if given is not None:
        return given
    for path in DEFAULT_FILES:
        if path.is_file():
            return path
    looked = " nor ".join(str(path) for path in DEFAULT_FILES)
    raise OperatorError(f"no configuration: there is neither {looked} here; name one, or set DRAGOMAN_CONFIG")
