"""The functions that kernels call, as code that only a kernel optimises and translates.

Numba optimises and translates each function on the way to a kernel, with all that it calls,
although only the kernel is ever run: half of the time of compiling (the kernels of `flatmin train`
take 12.6 instead of 25 s of processor time, with the same bits and speed). Here such a function's
library keeps the code as it was lowered, and the kernel that links it does the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

_Library: Any = JITCodeLibrary


class Part(_Library):  # type: ignore[misc]
    """The code of a function that is never run by itself: there is no address of it."""

    def _optimize_final_module(self) -> None: ...

    def _finalize_final_module(self) -> None:
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Part:
        """Asked only to `set_env`."""
        return self

    def set_env(self, name: str, env: Any) -> None:
        """Nothing of it is in memory yet."""


@contextmanager
def as_parts() -> Iterator[None]:
    """What is compiled in here becomes parts of kernels."""
    codegen: Any = cpu_target.target_context.codegen()
    with global_compiler_lock:
        usual, codegen._library_class = codegen._library_class, Part
        try:
            yield
        finally:
            codegen._library_class = usual
