"""How much memory a request may take, asked before allocating."""

from __future__ import annotations

import os
from pathlib import Path

from flatmin.core.errors import SettingError


def available_bytes() -> int:
    """Memory that can still be allocated without swapping, as far as the system says."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(what: str, needed: float) -> None:
    """A SettingError if `needed` bytes are not there."""
    free = available_bytes()
    if needed > 0.9 * free:
        raise SettingError(
            f"{what} would need {needed / 2**30:.1f} GiB of memory, "
            f"but this machine has {free / 2**30:.1f} GiB free"
        )
