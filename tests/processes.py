"""Processes that tests start: Ctrl-C reaches them, and none outlives the block that started it.

Every test starts its processes here. A child is the leader of a session of its own, so whatever it
starts in turn can be found and killed with it.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

LIMIT_SECONDS = 300.0


@contextmanager
def started(command: Sequence[object], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process inside the block; at its end the process and all it has started are killed."""
    with _interrupts():
        process = subprocess.Popen(
            [str(part) for part in command], text=True, start_new_session=True, **options
        )
    with process:  # closes its pipes and waits for it
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def run(command: Sequence[object], **options: Any) -> tuple[int, str, str]:
    """Exit code, output and errors of a process that ends by itself."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with started(command, **pipes) as process:
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out, err


@contextmanager
def _interrupts() -> Iterator[None]:
    """Inside, SIGINT has a handler, which a new program begins without: it does the default.

    A shell starts background jobs with SIGINT ignored, and so would be the children of tests that
    run in one. That flatmin then ignores it too is right; that a test cannot send it is not.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
