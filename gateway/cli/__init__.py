"""The command line; `dragoman` and `python -m gateway` both enter at `main`.

May import `adapter`, `addresses`, `core`, `dragoman.client`, `errors`, `events`, `http`, `links`, `plugins`,
`runtime`, `settings`, `store`, `testing`.
"""

from gateway.cli.commands import main as main
