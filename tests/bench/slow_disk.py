"""Makes syncs of the disk slower for one process, by a few lines of C that are loaded in front of the C library."""

import asyncio
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.bench.processes import BenchProblem

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static void wait_first(void) {
    const char *said = getenv("BENCH_SYNC_DELAY_US");
    long micros = said ? strtol(said, NULL, 10) : 0;
    struct timespec span = {micros / 1000000, micros % 1000000 * 1000};
    nanosleep(&span, NULL);
}

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_first();
    return real(file);
}

int fsync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_first();
    return real(file);
}
"""


def missing() -> str | None:
    """Say what is missing for slow disks; None where nothing is."""
    return None if shutil.which("cc") else "there is no C compiler (cc) to build the slow disk with"


@asynccontextmanager
async def slowed(folder: Path, delay: float) -> AsyncGenerator[dict[str, str]]:
    """Give the environment in which each sync takes longer by `delay` seconds; an empty one for none."""
    if not delay:
        yield {}
        return
    source, library = folder / "slow.c", folder / "slow.so"
    source.write_text(_SOURCE)
    compiler = await asyncio.create_subprocess_exec(
        "cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl", stderr=asyncio.subprocess.PIPE
    )
    _, said = await compiler.communicate()
    if compiler.returncode:
        raise BenchProblem(f"cc cannot build the slow disk:\n{said.decode(errors='replace')[-1000:]}")
    yield {"LD_PRELOAD": str(library), "BENCH_SYNC_DELAY_US": str(round(delay * 1e6))}
