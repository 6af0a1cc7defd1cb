"""Compiled kernels on disk: a file a compiled form, whole or not used at all.

Numba keeps an index of each function's forms, which two processes that compile at once write over
each other, and it believes what it reads. Here a form is one file, named after everything that it
depends on and written under a temporary name; its first bytes are a digest of the rest. Whatever is
wrong with a file or the folder, the kernel is compiled as if there were none, and one line says so.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from flatmin.core.memory import check_memory

_DIGEST = 32
# What compiling a kernel takes, about 200 MB, and some more: LLVM ends a process without memory.
_ROOM = 256 << 20
_log = logging.getLogger("flatmin")
_rebuild: Callable[..., Any] = CompileResult._rebuild
_dumps: Callable[[Any], bytes] = dumps


class Kept(NullCache):
    """The compiled forms of one function, as Numba's dispatcher asks for them."""

    def __init__(self, function: Callable[..., Any], folder: Path) -> None:
        self.name, self._folder = f"{function.__module__}.{function.__qualname__}", folder

    @property
    def cache_path(self) -> str:
        """The folder."""
        return str(self._folder)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The form for these types, or None.

        Its code asks for the runtime that counts references. What the compiler knows besides, which
        Numba's own cache loads as well, takes 0.3 s and is loaded where something is compiled.
        """
        rtsys.initialize(target_context)
        path = self._path(sig, target_context.codegen())
        try:
            content = path.read_bytes()
            digest, payload = content[:_DIGEST], content[_DIGEST:]
            if _digest(payload) != digest:
                raise ValueError("a damaged file")
            types, form = pickle.loads(payload)
            return _rebuild(target_context, *form) if types == sig else None
        except FileNotFoundError:
            check_memory("compiling a kernel", _ROOM)
            _tell()
            return None
        except Exception as error:
            _say(str(self._folder), _reason(error))
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep a form."""
        path = self._path(sig, data.codegen)
        temporary = path.with_suffix(f".{os.getpid()}.part")
        payload = _dumps((sig, data._reduce()))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(_digest(payload) + payload)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            _say(str(self._folder), _reason(error))

    def _path(self, sig: Any, codegen: Any) -> Path:
        version = (numba.__version__, sys.version_info[:2], codegen.magic_tuple())
        form = hashlib.blake2b(repr((sig, version)).encode(), digest_size=16)
        return self._folder / f"{self.name}.{form.hexdigest()}.kernel"


def _digest(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_DIGEST).digest()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


@cache
def _tell() -> None:
    """What takes the time, once, to a person."""
    if sys.stderr.isatty():
        print("compiling kernels for this processor, once ...", file=sys.stderr, flush=True)


@cache
def _say(folder: str, reason: str) -> None:
    """One line, once; the command holds it back until it has succeeded."""
    _log.warning("kernels kept in %r cannot be used (%s): they are compiled anew", folder, reason)
