"""How much memory a request may take, asked before allocating; and how the machine's is made."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import CDLL
from functools import cache
from pathlib import Path

from flatmin.core.errors import SettingError

_ARENA_MAX = -8  # M_ARENA_MAX of malloc.h
# So little is not asked for: the answer takes as long as making it.
_LITTLE = 16 << 20


def available_bytes() -> int:
    """Memory that can still be allocated without swapping, as far as the system says.

    A limit of this process (`ulimit -v`) counts as well.
    """
    return int(max(0, min(_of_system(), _of_process())))


def _of_process() -> float:
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getpagesize, getrlimit

        limit = getrlimit(RLIMIT_AS)[0]
        if limit != RLIM_INFINITY:
            return limit - int(Path("/proc/self/statm").read_text().split()[0]) * getpagesize()
    except (ImportError, OSError):
        pass
    return math.inf


def _of_system() -> float:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@cache
def first_cache() -> int:
    """Bytes of a core's first cache for data; 32 KB where the system does not say."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    try:
        for index in sorted(folder.glob("index*")):
            kind, level, size = ((index / name).read_text() for name in ("type", "level", "size"))
            if kind.strip() == "Data" and int(level) == 1:
                return int(size.strip().removesuffix("K")) << 10
    except (OSError, ValueError):
        pass
    return 32 << 10


def one_heap() -> None:
    """One heap for all threads: of glibc's many, each keeps what the others could use."""
    with suppress(OSError, AttributeError):  # another C library
        CDLL(None).mallopt(_ARENA_MAX, 1)


@contextmanager
def many_objects() -> Iterator[None]:
    """While millions of objects are made that stay, they are not searched for ones that do not."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def check_memory(what: str, needed: float) -> None:
    """A SettingError if `needed` bytes are not there."""
    if needed <= _LITTLE:
        return
    free = available_bytes()
    if needed > 0.9 * free:
        raise SettingError(
            f"{what} would need {needed / 2**30:.3g} GiB of memory, "
            f"but there are {free / 2**30:.3g} GiB free"
        )
