"""A wall clock that jumps for one search alone: a library that its processes load, compiled here.

The machine's own clock is everybody's, and no namespace of Linux shifts it. The library moves what Python's core reads
of CLOCK_REALTIME (`time.time`, `datetime.now`), in every process of the search; native libraries wait until times of
the kernel's clock, and go on reading that one.
"""

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static const volatile long long *ahead_s;
static void *python;

static void __attribute__((constructor)) look(void) {
    Dl_info core;
    void *main_ = dlsym(RTLD_DEFAULT, "Py_BytesMain");
    const char *path = getenv("SOAK_CLOCK");
    int file = path && main_ && dladdr(main_, &core) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *found = mmap(NULL, sizeof *ahead_s, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED) return;
    ahead_s = found;
    python = core.dli_fbase;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*kernel)(clockid_t, struct timespec *);
    if (!kernel) kernel = dlsym(RTLD_NEXT, "clock_gettime");
    int error = kernel(clock, at);
    Dl_info caller;
    if (!error && clock == CLOCK_REALTIME && ahead_s && *ahead_s
        && dladdr(__builtin_return_address(0), &caller) && caller.dli_fbase == python)
        at->tv_sec += *ahead_s;
    return error;
}
"""


class Clock:
    """The wall clock of the processes that have its `environment`."""

    def __init__(self, folder: Path) -> None:
        """Compiles the library into `folder`; the clock is right.

        Raises:
            OSError: there is no C compiler, or it fails.
        """
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise OSError("no C compiler is installed")
        self._file, library = folder / "clock", folder / "clock.so"
        command = [compiler, "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", str(library), "-ldl"]
        compiled = subprocess.run(command, input=_SOURCE, capture_output=True, text=True, check=False)
        if compiled.returncode:
            raise OSError(f"{compiler} does not compile the clock: {compiled.stderr.strip()}")
        self.jump(0)
        self.environment: Mapping[str, str] = {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(self._file)}

    def jump(self, ahead_s: int) -> None:
        """Sets it this many seconds ahead of the kernel's, or behind it where negative."""
        self._file.touch()
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", ahead_s))
