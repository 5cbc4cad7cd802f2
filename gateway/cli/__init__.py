"""The command line; `dragoman` and `python -m gateway` both enter at `main`.

May import `adapter`, `addresses`, `core`, `dragoman.client`, `dragoman.models`, `errors`, `events`,
`executors`, `http`, `links`, `plugins`,
`runtime`, `settings`, `strict_json`, `store`, `testing`, `visible`.
"""

from gateway.cli.commands import main as main
