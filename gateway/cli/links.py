"""`dragoman links`: the links of notices about held calls."""

import typer

from gateway.cli.help import examples
from gateway.cli.options import KEY, URL

commands = typer.Typer(
    name="links",
    help="Withdraw the links of notices about held calls.",
    epilog=examples("dragoman links rotate"),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@commands.callback()
def links() -> None:
    """Keep `rotate` a command of its own; a group with one command would be that command."""


@commands.command(epilog=examples("dragoman links rotate"))
def rotate(*, url: str = URL, key: str | None = KEY) -> None:
    """End all links that were sent; held calls keep waiting, and their next notices contain new links."""
    from gateway.cli.connection import connect

    with connect(url, key) as gateway:
        gateway.run(gateway.client.request("POST", "/v1/links/rotate"))
        typer.echo("all links have ended")
