"""Shell completion: Typer completes commands and options; the gateway supplies names and IDs."""

import os
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from typer.completion import get_completion_inspect_parameters

from gateway.cli.help import DEFAULT_URL as DEFAULT_URL, examples

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from dragoman.client import Client, Runtime

T = TypeVar("T")
PATIENCE = 1.5
"""Seconds; the user is waiting at the TAB key."""
_MOST = 100
_HARMLESS = re.compile(r"[A-Za-z0-9_@%+=.,/-]+")
"""Names without a character that is special in any shell; the names come from runtimes."""


class Shell(StrEnum):
    """A supported shell."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# Typer's own scripts cannot be loaded from zsh's fpath, and with them bash expands the completions.
_SCRIPTS = {
    Shell.BASH: """\
_dragoman() {
    mapfile -t COMPREPLY < <(
        COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" _DRAGOMAN_COMPLETE=complete_bash "$1" 2>/dev/null
    )
}
complete -o default -F _dragoman dragoman""",
    Shell.ZSH: """\
#compdef dragoman
_dragoman() {
    eval "$(_TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _DRAGOMAN_COMPLETE=complete_zsh "${words[1]}" 2>/dev/null)"
}
if [[ "${funcstack[1]}" = _dragoman ]]; then
    _dragoman "$@"
else
    compdef _dragoman dragoman
fi""",
    Shell.FISH: """\
function __dragoman
    env _DRAGOMAN_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=$argv[1] \\
        _TYPER_COMPLETE_ARGS=(commandline -cp) dragoman 2>/dev/null
end
complete --command dragoman --no-files --arguments '(__dragoman get-args)' --condition '__dragoman is-args'""",
}


commands = typer.Typer()


@commands.command(
    epilog=examples(
        "dragoman completion bash \\",
        "  > ~/.local/share/bash-completion/completions/dragoman",
        "dragoman completion zsh > ~/.zfunc/_dragoman",
        "dragoman completion fish > ~/.config/fish/completions/dragoman.fish",
        "source <(dragoman completion bash)                 for this shell only",
        more="zsh: add ~/.zfunc to fpath before compinit.\n"
        "Names of runtimes, sessions, calls and requests come from the gateway at DRAGOMAN_URL.",
    )
)
def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the completion script of a shell."""
    typer.echo(_SCRIPTS[shell])


def prepare() -> None:
    """Make Typer register its shells; it does so by itself only with its own completion options."""
    get_completion_inspect_parameters()


def complete_session(ctx: typer.Context, incomplete: str) -> list[str]:
    """List the names of open sessions, newest first."""
    runtime, slash, _ = incomplete.partition("/")
    rows = _take(ctx, lambda client: client.sessions(runtime=runtime if slash else None, open_only=True,
                                                     newest_first=True))  # fmt: skip
    return _keep_harmless(f"{row.runtime}/{row.native_id}" for row in rows)


def complete_runtime(ctx: typer.Context) -> list[str]:
    """List the runtimes."""

    async def runtimes(client: "Client") -> "AsyncGenerator[Runtime]":
        for row in await client.runtimes():
            yield row

    return _keep_harmless(row.name for row in _take(ctx, runtimes))


def complete_interaction(ctx: typer.Context) -> list[str]:
    """List the IDs of waiting requests."""
    return _keep_harmless(row.interaction_id for row in _take(ctx, lambda client: client.interactions(state="waiting")))


def complete_call(ctx: typer.Context) -> list[str]:
    """List the IDs of the newest calls."""
    return _keep_harmless(row.call_id for row in _take(ctx, lambda client: client.calls()))


def _take(ctx: typer.Context, rows: "Callable[[Client], AsyncGenerator[T]]") -> list[T]:
    from dragoman.client import ClientError
    from gateway.cli.connection import GatewayConnection
    from gateway.cli.errors import Misused

    url = ctx.params.get("url") or os.environ.get("DRAGOMAN_URL") or DEFAULT_URL
    key = ctx.params.get("key") or os.environ.get("DRAGOMAN_KEY")
    try:
        with GatewayConnection(url, key, timeout=PATIENCE) as gateway:
            return gateway.take(rows(gateway.client), _MOST)[0]
    except (ClientError, Misused):
        return []


def _keep_harmless(names: Iterable[str]) -> list[str]:
    return [name for name in names if _HARMLESS.fullmatch(name)]
