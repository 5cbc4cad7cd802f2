"""A few lines of C in front of a gateway's C library: clocks jump, names lie or hang, a disk hangs, a write ends it."""

import asyncio
import shutil
import struct
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* The wall clock is off by what stands in a file of eight bytes; steady clocks are as they are. */

static double jump(void) {
    static volatile double *shared;
    const char *path = getenv("FAULTS_CLOCK");
    if (!path) return 0;
    if (!shared) {
        int file = open(path, O_RDONLY);
        void *place = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, file, 0);
        if (file >= 0) close(file);
        if (place == MAP_FAILED) abort();
        shared = place;
    }
    return *shared;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(which, now);
    if (!result && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += (time_t)jump();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    if (!result) now->tv_sec += (time_t)jump();
    return result;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}

/* One name leads to the address that clouds keep their secrets at; nobody answers for another while a file is there. */

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    if (!real)
        real = (int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))
            dlsym(RTLD_NEXT, "getaddrinfo");
    const char *wanted = getenv("FAULTS_NAME");
    int is_it = wanted && name && !strcmp(name, wanted);
    const char *mute = getenv("FAULTS_MUTE"), *path = getenv("FAULTS_MUTE_WHILE");
    int is_address = hints && (hints->ai_flags & AI_NUMERICHOST);
    struct timespec moment = {0, 10000000};
    if (mute && path && name && !strcmp(name, mute) && !is_address) {
        while (!access(path, F_OK)) nanosleep(&moment, NULL);
        return EAI_AGAIN;
    }
    return real(is_it ? "169.254.169.254" : name, service, hints, found);
}

/* Nothing reaches the disk as long as a file is there. */

int fdatasync(int file) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    const char *path = getenv("FAULTS_HANG");
    struct timespec moment = {0, 10000000};
    while (path && !access(path, F_OK)) nanosleep(&moment, NULL);
    return real(file);
}

/* The n-th write to one file is torn in two, and the process is gone. */

static int is_last(int file) {
    static long left;
    const char *path = getenv("FAULTS_DIE_IN");
    char link[64], found[PATH_MAX];
    if (!path) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, found, sizeof found - 1);
    if (length < 0) return 0;
    found[length] = 0;
    if (strcmp(found, path)) return 0;
    if (!left) left = strtol(getenv("FAULTS_DIE_AT"), NULL, 10);
    return --left == 0;
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t place) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    if (is_last(file)) {
        real(file, bytes, count / 2, place);
        kill(getpid(), SIGKILL);
    }
    return real(file, bytes, count, place);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t place) {
    return pwrite64(file, bytes, count, place);
}
"""


def missing() -> str | None:
    """Say what is missing to build it; None where nothing is."""
    return None if shutil.which("cc") else "there is no C compiler (cc)"


class Clock:
    """The wall clock of processes; `step` moves it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(struct.pack("d", 0.0))

    @property
    def environment(self) -> dict[str, str]:
        return {"FAULTS_CLOCK": str(self._file)}

    def step(self, seconds: float) -> None:
        """Let the wall clock be off by so much from now on."""
        # Written in place, since the processes look at these very bytes.
        with self._file.open("r+b") as place:
            place.write(struct.pack("d", seconds))


def hang_while(file: Path) -> dict[str, str]:
    """The environment of a process whose disk answers nobody as long as the file is there."""
    return {"FAULTS_HANG": str(file.resolve())}


def mute_while(file: Path, name: str) -> dict[str, str]:
    """The environment of a process to which no name server answers for a name as long as the file is there."""
    return {"FAULTS_MUTE": name, "FAULTS_MUTE_WHILE": str(file.resolve())}


def death_in(file: Path, nth: int) -> dict[str, str]:
    """The environment of a process that dies in its n-th write to a file, half of it done."""
    return {"FAULTS_DIE_IN": str(file.resolve()), "FAULTS_DIE_AT": str(nth)}


async def preload(folder: Path) -> dict[str, str]:
    """Build the library; returns the environment that loads it."""
    source, library = folder / "shim.c", folder / "shim.so"
    source.write_text(_SOURCE)
    compiler = await asyncio.create_subprocess_exec(
        "cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(source), "-ldl",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    _, said = await compiler.communicate()
    assert compiler.returncode == 0, said.decode()
    return {"LD_PRELOAD": str(library)}
