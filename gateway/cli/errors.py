"""The errors of commands and their exit codes: 1 for a failure, 2 for wrong usage."""

from collections.abc import Generator
from contextlib import contextmanager

import typer

from gateway.cli.terminal import complain, leave_quietly, note, show_problems
from gateway.errors import DownstreamError, InvalidConfiguration, OperatorError


class Misused(Exception):
    """A usage error: the arguments contradict each other or have the wrong form."""


class Refusal(OperatorError):
    """A command failed; `fix` tells the user how to continue."""

    def __init__(self, text: str, fix: str = "") -> None:
        super().__init__(text)
        self.fix = fix


@contextmanager
def report_errors() -> Generator[None]:
    """Print an expected error on stderr and exit with its code."""
    try:
        yield
    except InvalidConfiguration as exc:
        show_problems(exc.file, exc.problems)
    except Refusal as exc:
        complain(str(exc), exc.fix)
    except (OperatorError, DownstreamError) as exc:
        complain(str(exc), _notes_of(exc))
    except Misused as exc:
        raise typer.BadParameter(str(exc)) from exc
    except BrokenPipeError:
        leave_quietly()
    except OSError as exc:
        complain(f"{exc.strerror or exc}{f': {exc.filename}' if exc.filename else ''}", _notes_of(exc))
    except KeyboardInterrupt as exc:
        if notes := _notes_of(exc):
            note(f"interrupted: {notes}")
        raise
    else:
        return
    raise typer.Exit(1)


def _notes_of(exc: BaseException) -> str:
    return "; ".join(getattr(exc, "__notes__", ()))
