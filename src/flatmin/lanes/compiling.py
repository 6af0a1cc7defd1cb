"""How kernels are compiled, and where the result is kept between processes.

Numba's own cache looks only at the file of the function it caches, not at the helpers that were
inlined from other files, so after a change or an upgrade it could run old code. Here the place of
the cache (see `kept`) is named after the content of every file that takes part.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba import types as _types
from numba.core import config
from numba.core.registry import cpu_target

from flatmin.lanes.kept import Kept
from flatmin.lanes.parts import as_parts

types: Any = _types
# What only kernels call needs no door from Python or C.
_NO_DOORS: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def _of_types_only(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """njit for functions that kernels call, compiled once for all values of their arguments.

    Numba compiles f(x, 0) and f(x, 1) apart, as functions of a literal.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        dispatcher: Any = njit(nogil=True, **_NO_DOORS, **options)(function)
        choose = dispatcher.get_call_template

        def of_types(args: Any, kws: Any) -> Any:
            with as_parts():
                return choose([types.unliteral(kind) for kind in args], kws)

        dispatcher.get_call_template = of_types
        return dispatcher  # type: ignore[no-any-return]

    return decorate


def without_settings_file() -> None:
    """From now on no `.numba_config.yaml` is read, which Numba does before it compiles."""
    config._config_fname = os.devnull


inlined = _of_types_only(forceinline=True)
"""For helpers of a few lines inside hot loops; without it d = 5 runs a third slower."""

helper = _of_types_only()
"""For larger parts of a kernel."""

apart = _of_types_only(forceinline=False)
"""For helpers that begin with `vectors.alone()`, so that they are not inlined anywhere."""

borrower = _of_types_only(_nrt=False)
"""For parts that, with all they call, neither make arrays nor return any: the owners of arrays are
not counted in them. Each count stops the processor until all it wrote before is in memory."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """For entry points: called from Python, without the interpreter lock, kept on disk."""
    entry: Any = njit(nogil=True)(function)
    folder = cache_directory()
    if folder is not None:
        entry._cache = Kept(function, folder)
    entry.compile = _without_collector(entry.compile)
    return entry  # type: ignore[no-any-return]


def _without_collector(compile_for: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Compiling makes many objects and little garbage: looking for it takes a tenth of the time."""

    def compile_at_once(signature: Any) -> Any:
        collects = gc.isenabled()
        gc.disable()
        try:
            return compile_for(signature)
        finally:
            if collects:
                gc.enable()

    return compile_at_once


def _processor() -> tuple[str, str]:
    """The name and the features of the processor that kernels are compiled for."""
    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    return name, features


@cache
def wide_registers() -> bool:
    """Whether kernels are compiled for registers of eight numbers (AVX-512, with DQ)."""
    return {"+avx512f", "+avx512dq"} <= set(_processor()[1].split(","))


@cache
def slow_divider() -> bool:
    """Whether a division of eight numbers takes as long as 32 multiplications (Intel's 16 cycles),
    not as eight (AMD's Zen 5)."""
    return not _processor()[0].startswith("znver")


def cache_directory() -> Path | None:
    """NUMBA_CACHE_DIR or the user's cache, then flatmin and the version of the kernels.

    None for a user without a home.
    """
    root = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(root) if root else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "flatmin" / kernels_version()


@cache
def kernels_version() -> str:
    """A hash of this room's sources."""
    digest = hashlib.blake2b(digest_size=8)
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()
