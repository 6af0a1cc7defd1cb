"""A Dask scheduler and workers on this machine, for as long as a block lasts.

The scheduler has a process of its own, so that it does not take turns with the client. It begins
with this module alone, and its input ends when the client does, however that happens.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from flatmin.core.errors import SettingError

# File handles of the scheduler, and for each worker, amply.
_HANDLES, _HANDLES_PER_WORKER = 100, 16
# What concerns the user is raised; these talk about connections that close.
_TALKATIVE = ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio")


def dask() -> Any:
    """The package, which does not talk."""
    try:
        import distributed
    except ImportError:
        raise SettingError(
            "a Dask cluster needs the package distributed: pip install 'flatmin[cluster]'"
        ) from None
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return distributed


@contextmanager
def local_cluster(workers: int) -> Iterator[str]:
    """The address of a new scheduler; too few file handles are told before any is taken."""
    import resource

    wanted = _HANDLES + _HANDLES_PER_WORKER * workers
    handles = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if handles != resource.RLIM_INFINITY and handles < wanted:
        raise SettingError(
            f"workers: {workers} Dask processes need about {wanted} file handles, and the limit "
            f"is {handles}: raise it (ulimit -n), or take fewer"
        )
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve({workers})"
    # In a session of its own: Ctrl-C is for this process.
    # Neither it nor its workers take a module of this folder for a library's.
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONSAFEPATH": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process:  # which ends its input and waits
        dask()  # while the other one does the same
        assert process.stdout is not None
        kind, _, said = process.stdout.readline().decode().strip().partition(" ")
        if kind != "address":
            raise SettingError(f"workers: {workers} Dask processes do not start: {said}")
        yield said


def serve(workers: int) -> None:
    """Be the scheduler until the input ends; the first line says where it is, or what is wrong."""
    try:
        cluster = dask().LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,
        )
    except (OSError, RuntimeError, SettingError) as error:
        _say("error", str(error))
        return
    with cluster:
        _say("address", cluster.scheduler_address)
        sys.stdin.buffer.read()


def _say(*words: str) -> None:
    """One line, if anybody is there."""
    with suppress(BrokenPipeError):
        os.write(1, f"{' '.join(' '.join(words).split())}\n".encode())
