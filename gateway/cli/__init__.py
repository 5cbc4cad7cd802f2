"""The command line; `dragoman` and `python -m gateway` both enter at `main`."""

from gateway.cli.commands import main as main
