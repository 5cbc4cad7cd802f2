"""Turns whatever ends a command early into lines for people and an exit code: 1 for a failure, 2 for wrong usage."""

from collections.abc import Generator
from contextlib import contextmanager

import typer

from gateway.cli.faults import Misused, Refusal
from gateway.cli.terminal import complain, leave_quietly, note, show_problems
from gateway.errors import DownstreamError, InvalidConfiguration, OperatorError

# click wraps paragraphs; a line with only a backspace keeps the next one as it is.
RAW = "\b\n"


@contextmanager
def explained() -> Generator[None]:
    """Turn what an operator must mend into lines on stderr and exit code 1."""
    try:
        yield
    except InvalidConfiguration as exc:
        show_problems(exc.file, exc.problems)
    except Refusal as exc:
        complain(str(exc), exc.mend)
    except (OperatorError, DownstreamError) as exc:
        complain(str(exc), _noted(exc))
    except Misused as exc:
        raise typer.BadParameter(str(exc)) from exc
    except BrokenPipeError:
        leave_quietly()
    except OSError as exc:
        complain(f"{exc.strerror or exc}{f': {exc.filename}' if exc.filename else ''}", _noted(exc))
    except KeyboardInterrupt as exc:
        if noted := _noted(exc):
            note(f"interrupted: {noted}")
        raise
    else:
        return
    raise typer.Exit(1)


def _noted(exc: BaseException) -> str:
    """Say what was added to an exception on its way: how things are left."""
    return "; ".join(getattr(exc, "__notes__", ()))
