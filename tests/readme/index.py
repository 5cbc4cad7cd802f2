"""A package index on loopback: it has the libraries of this environment, and no distribution of ours."""

import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from zipfile import ZipFile

from packaging.utils import canonicalize_name

OURS = frozenset({"dragoman", "dragoman-sdk"})
_LEFT_OUT = {"INSTALLER", "REQUESTED", "direct_url.json", "RECORD"}
"""Written by the installation, or made anew."""


class Index:
    """Remembers the name of each project that an installer asks for."""

    def __init__(self, folder: Path) -> None:
        self.asked = set[str]()
        self._folder = folder
        self._making = threading.Lock()
        self._page = cache(self._list)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/simple/"

    @contextmanager
    def serving(self) -> Generator["Index"]:
        """Answer requests until the block ends."""
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def answer(self, path: str) -> bytes | None:
        """Return the page of a project, or a file; None if there is none."""
        kind, _, name = path.strip("/").partition("/")
        with self._making:
            if kind == "files":
                return (self._folder / name).read_bytes()
            self.asked.add(canonicalize_name(name))
            return self._page(canonicalize_name(name))

    def _list(self, name: str) -> bytes | None:
        if name in OURS:
            return None
        try:
            file = _pack(distribution(name), self._folder)
        except PackageNotFoundError:
            return None
        return f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode()

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = index.answer(self.path)
                self.send_response(404 if body is None else 200)
                self.send_header("Content-Type", "text/html" if self.path.startswith("/simple/") else "application/zip")
                self.send_header("Content-Length", str(len(body or b"")))
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of its base
                pass

        return Handler


def _pack(installed: Distribution, folder: Path) -> str:
    """Make the wheel again from which a distribution was installed; return its file name."""
    wheel = installed.read_text("WHEEL") or ""
    tags = [line.partition(": ")[2].split("-") for line in wheel.splitlines() if line.startswith("Tag: ")]
    tag = "-".join(".".join(sorted(set(part))) for part in zip(*tags, strict=True))
    file = f"{canonicalize_name(installed.name).replace('-', '_')}-{installed.version}-{tag}.whl"
    kept = [
        path
        for path in installed.files or []
        if ".." not in path.parts and path.suffix != ".pyc" and path.name not in _LEFT_OUT
    ]
    [metadata] = {path.parts[0] for path in kept if path.parts[0].endswith(".dist-info") and path.name == "METADATA"}
    with ZipFile(folder / file, "w") as packed:
        for path in kept:
            packed.write(Path(str(installed.locate_file(path))), path.as_posix())
        rows = "".join(f"{path.as_posix()},,\n" for path in kept)
        packed.writestr(f"{metadata}/RECORD", f"{rows}{metadata}/RECORD,,\n")
    return file
