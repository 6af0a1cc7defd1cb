"""What a command finds around it: streams, terminals, limits; and what it says of them.

Errors of the system (a full disk, no memory, too few file handles) are nobody's bug: they become
one line and exit code 2, like any other complaint. Warnings of libraries are for developers: they
are shown only if Python was asked for them (`-W`, PYTHONWARNINGS). What flatmin itself has to
remark is said when the command has succeeded: a complaint is one line.
"""

from __future__ import annotations

import atexit
import codecs
import logging
import os
import sys
from contextlib import suppress
from errno import EBADF, EIO, ENOSPC
from typing import NoReturn

from flatmin.core.memory import one_heap

_LEAST = 640 << 20  # the compiler aborts below 600
_COMPILER = ".numba_config.yaml"
# What is drawn where the terminal cannot show the sign.
_PLAINER = {"─": "-", "–": "-", "…": "...", "×": "x", "·": "."}


class _Remarks(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


_REMARKS = _Remarks()


def prepare() -> None:
    """Before anything else: streams that can be written to, and quiet libraries."""
    # The matrices here are small and flatmin has threads of its own: BLAS threads on top of them
    # wait for each other (a QR that takes 0.16 s took 15 s on a busy machine).
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["MPLBACKEND"] = "agg"  # files are all that is drawn here
    for name in ("NUMBA_NUM_THREADS", "NUMBA_DISABLE_JIT"):  # kernels are compiled, threads ours
        os.environ.pop(name, None)
    if os.path.exists(_COMPILER):
        _leave_aside(_COMPILER)
    for name in ("COLUMNS", "LINES"):  # rich takes any digits, and int does not
        if not os.environ.get(name, "").isascii():
            del os.environ[name]
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:  # closed: no file of ours may take its place
            nowhere = os.open(os.devnull, os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
    codecs.register_error("flatmin", _plainer)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="flatmin")
    logging.getLogger("flatmin").handlers = [_REMARKS]
    if not sys.warnoptions:
        import warnings

        warnings.simplefilter("ignore")
        logging.getLogger().addHandler(logging.NullHandler())


def _leave_aside(settings: str) -> None:
    """Numba reads this file where it is imported, whoever wrote it and whatever is in it."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(os.sep)
    try:
        from flatmin.lanes.compiling import without_settings_file

        without_settings_file()
    finally:
        os.fchdir(here)
        os.close(here)


def shortage() -> str | None:
    """What to say where a limit (`ulimit -v`) leaves no room even for the libraries, which would
    end the process without a word."""
    try:
        from resource import RLIM_INFINITY, RLIMIT_AS, getrlimit
    except ImportError:
        return None
    limit = getrlimit(RLIMIT_AS)[0]
    if limit == RLIM_INFINITY:
        return None
    # pyarrow's own allocator reserves a gigabyte, and glibc's 64 megabytes for every thread.
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    one_heap()
    if limit >= _LEAST:
        return None
    return f"ulimit -v allows {limit >> 20} MiB of memory, at least {_LEAST >> 20} MiB are needed"


def _plainer(error: UnicodeError) -> tuple[str, int]:
    """What stands for signs that a stream cannot take."""
    assert isinstance(error, UnicodeEncodeError)
    signs = error.object[error.start : error.end]
    return "".join(_PLAINER.get(one, ascii(one)[1:-1]) for one in signs), error.end


def finish(code: int) -> int:
    """The exit code, after what was printed has arrived."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        complain(f"standard output cannot be written: {error.strerror}")
        return 2
    if code in (0, 1):
        for line in _REMARKS.lines:
            complain(line)
    return code


def leave(code: int) -> NoReturn:
    """End at once, after what is to be done at the end of a process.

    What was interrupted may be half compiled: taking the compiler down has ended in a crash.
    """
    atexit._run_exitfuncs()
    os._exit(code)


def drop_output() -> None:
    """Nothing more is printed, at the end of the process either."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> None:
    """One line on standard error; what is no text in it is written as an escape."""
    words = " ".join(message.split())
    plain = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in words)
    with suppress(OSError):  # where nobody hears it, the exit code still says it
        print(f"flatmin: {plain}", file=sys.stderr, flush=True)


def reason(error: Exception) -> str | None:
    """What the system refused, in words; None if the error is of another kind."""
    if isinstance(error, OSError):
        if error.filename is None and error.errno in (ENOSPC, EIO, EBADF):
            drop_output()
            return f"standard output cannot be written: {error.strerror}"
        about = f"{error.filename!r}: " if error.filename is not None else ""
        return f"{about}{error.strerror or error}"
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):
        return "not enough memory for this; smaller widths, depths or numbers of runs need less"
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        from flatmin.core.threads import NO_THREADS

        return NO_THREADS
    return None
