"""Files: written ones appear whole or not at all, only plain ones are read as text."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from flatmin.core.errors import SettingError

MOST_TEXT = 1 << 28


@contextmanager
def telling(what: str) -> Iterator[None]:
    """What the system refuses inside is told in one line that begins with `what`."""
    try:
        yield
    except OSError as error:
        raise SettingError(f"{what}: {error.strerror or error}") from None


def read_text(path: Path) -> str:
    """The text of a plain file in UTF-8: a pipe would wait and a device flow for ever."""
    name = repr(str(path))
    with telling(f"{name} cannot be read"):
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SettingError(f"{name} cannot be read: it is no regular file")
        if found.st_size > MOST_TEXT:
            raise SettingError(f"{name} cannot be read: it has more than {MOST_TEXT >> 20} MiB")
        try:
            return path.read_text("utf-8")
        except UnicodeDecodeError:
            raise SettingError(f"{name} is not a text file in UTF-8") from None


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` when the block ends well."""
    # Processes of two machines may have one number.
    own = f"{os.getpid()}-{token_hex(4)}"
    temporary = path.with_name(f".{path.stem[:200]}.{own}.part{path.suffix}")
    if path.exists() and not path.is_file():
        raise SettingError(f"{str(path)!r} cannot be written: it is no regular file")
    with telling(f"{str(path)!r} cannot be written"):
        try:
            temporary.unlink(missing_ok=True)  # whatever lies there, such as a link to elsewhere
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """The file is gone afterwards, or a SettingError says why not."""
    with telling(f"{str(path)!r} cannot be removed"):
        path.unlink(missing_ok=True)


def make_directory(path: Path) -> Path:
    """The folder, made if it is not there; a SettingError if it cannot be."""
    with telling(f"the folder {str(path)!r} cannot be made"):
        path.mkdir(parents=True, exist_ok=True)
    return path
