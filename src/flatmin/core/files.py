"""Files appear whole or not at all: written under a temporary name, flushed, renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flatmin.core.errors import SettingError


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` when the block ends well."""
    temporary = path.with_name(f".{path.stem[:200]}.{os.getpid()}.part{path.suffix}")
    if path.exists() and not path.is_file():
        raise SettingError(f"{str(path)!r} cannot be written: it is no regular file")
    try:
        temporary.unlink(missing_ok=True)  # whatever lies there, such as a link to elsewhere
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingError(f"{str(path)!r} cannot be written: {reason}") from None
    finally:
        temporary.unlink(missing_ok=True)


def make_directory(path: Path) -> Path:
    """The folder, made if it is not there; a SettingError if it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingError(f"the folder {str(path)!r} cannot be made: {reason}") from None
    return path
