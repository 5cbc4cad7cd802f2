"""What the shell's TAB key offers: commands and options by Typer's own means, and names that the gateway knows."""

import os
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import typer
from typer.completion import get_completion_inspect_parameters

from gateway.cli.explained import RAW, explained

COMPLETE_VARIABLE = "_DRAGOMAN_COMPLETE"
"""Names what a shell asks for; Typer reads it."""
DEFAULT_URL = "http://127.0.0.1:8080"
"""Where a gateway is that `serve` has begun on this machine."""
PATIENCE = 1.5
"""Seconds; somebody waits with a finger on the key."""
_MOST = 100
_HARMLESS = re.compile(r"[A-Za-z0-9_@%+=.,/-]+")
"""Names that no shell reads anything into; runtimes choose them."""


class Shell(StrEnum):
    """A shell that can be told."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


# Typer's own scripts cannot be loaded from zsh's fpath, and let bash expand what they print.
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


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=f"{RAW}Examples:\n  dragoman completion bash \\\n"
        "    > ~/.local/share/bash-completion/completions/dragoman\n"
        "  dragoman completion zsh > ~/.zfunc/_dragoman\n"
        "  dragoman completion fish > ~/.config/fish/completions/dragoman.fish\n"
        "  source <(dragoman completion bash)                 for this shell only\n\n"
        "zsh wants ~/.zfunc in its fpath, before compinit.\n"
        "Names of runtimes, sessions and questions come from the gateway that DRAGOMAN_URL and DRAGOMAN_KEY name."
    )(completion)


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print what makes a shell complete this command."""
    with explained():
        typer.echo(_SCRIPTS[shell])


def prepare() -> None:
    """Make Typer know its shells, which it does by itself only where it adds options of its own for them."""
    get_completion_inspect_parameters()


def complete_session(ctx: typer.Context, incomplete: str) -> list[str]:
    """Offer open sessions by their names, the newest first."""
    runtime, slash, _ = incomplete.partition("/")
    query = {"order": "newest", "open": "true", "limit": _MOST} | ({"runtime": runtime} if slash else {})
    return _harmless(f"{row['runtime']}/{row['native_id']}" for row in _rows(ctx, "/v1/sessions", query))


def complete_runtime(ctx: typer.Context) -> list[str]:
    """Offer the runtimes."""
    return _harmless(row["name"] for row in _rows(ctx, "/v1/runtimes", {}))


def complete_interaction(ctx: typer.Context) -> list[str]:
    """Offer the ids of what waits for a person."""
    query = {"state": "waiting", "limit": _MOST}
    return _harmless(row["interaction_id"] for row in _rows(ctx, "/v1/interactions", query))


def _rows(ctx: typer.Context, path: str, query: dict[str, Any]) -> list[dict[str, Any]]:
    from gateway.cli.client import ApiClient
    from gateway.cli.faults import Refusal

    url = ctx.params.get("url") or os.environ.get("DRAGOMAN_URL") or DEFAULT_URL
    key = ctx.params.get("key") or os.environ.get("DRAGOMAN_KEY")
    try:
        with ApiClient(url, key, patience=PATIENCE) as api:
            return api.get(path, **query)["data"]
    except (Refusal, ValueError):
        # Where nothing can be offered, the shell says so by offering nothing.
        return []


def _harmless(names: Iterable[str]) -> list[str]:
    return [name for name in names if _HARMLESS.fullmatch(name)]
