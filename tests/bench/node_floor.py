"""The integration in Node: socket.io-client and undici, installed into a cache folder from pinned versions."""

import asyncio
import filecmp
import shutil
from pathlib import Path

_SOURCE = Path(__file__).parent / "node"
_FILES = ("package.json", "package-lock.json", "floor.mjs")
_INSTALL = 180.0


async def prepare(cache: Path) -> tuple[str, ...] | str:
    """Install what is needed, once; returns the command, or why there is none."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "there is no node, or no npm, on this machine"
    if not _is_installed(cache):
        _copy(cache)
        problem = await _install(npm, cache)
        if problem is not None:
            (cache / "package-lock.json").unlink()
            return problem
    return (node, str(cache / "floor.mjs"))


def _copy(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copy(_SOURCE / name, cache / name)


def _is_installed(cache: Path) -> bool:
    same, _, _ = filecmp.cmpfiles(_SOURCE, cache, _FILES, shallow=False)
    return len(same) == len(_FILES) and (cache / "node_modules" / ".package-lock.json").exists()


async def _install(npm: str, cache: Path) -> str | None:
    process = await asyncio.create_subprocess_exec(
        npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error",
        cwd=cache, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(_INSTALL):
            _, said = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"npm does not end within {_INSTALL:g} s"
    return f"npm says: {said.decode(errors='replace').strip()[-300:]}" if process.returncode else None
