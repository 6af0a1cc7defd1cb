"""Which study a folder holds: its settings as canonical text, their hash, and who began it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flatmin.core.errors import DataError, SettingError
from flatmin.core.files import read_text
from flatmin.dynamics.endings import LEARNED_AT
from flatmin.study.versions import difference, versions

Note = Callable[[str], None]

IDENTITY = "study.json"
_SHOWN = 3


def hash_of(study_text: str) -> str:
    """The hash that names a study."""
    return hashlib.sha256(study_text.encode()).hexdigest()


def read_identity(directory: Path) -> dict[str, Any]:
    """What `study.json` says; a DataError if it is not as it was written."""
    path = directory / IDENTITY
    try:
        if path.is_symlink():
            raise ValueError
        identity = json.loads(read_text(path))
        study = json.loads(identity["study"])
        if (
            identity["sha256"] == hash_of(identity["study"])
            and isinstance(identity["versions"], dict)
            and isinstance(identity.get("runs"), int | None)
            and float(study.get("method", {}).get("learned_at", LEARNED_AT)) > 0
        ):
            return dict(identity)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise DataError(f"{str(path)!r} is damaged or not flatmin's: restore it, or give a new folder")


def check_same(directory: Path, study_text: str, say: Note) -> None:
    """Refuse to continue another study, or this one with another flatmin."""
    identity = read_identity(directory)
    old = identity["study"]
    if old != study_text:
        raise SettingError(
            f"{str(directory)!r} holds a study with another spec "
            f"({spec_difference(old, study_text)}): give a new folder, or the old spec"
        )
    then, now = identity["versions"], versions()
    own = {name: then.get(name, "unknown") for name in ("flatmin", "kernels")}
    if changed := difference(own, now):
        raise SettingError(
            f"{str(directory)!r} was begun with another flatmin (this is {changed}): "
            "finish it with that one, or give a new folder"
        )
    if changed := difference(then, now):
        say(f"the study was begun with other libraries: now {changed}; last digits may differ")


def spec_difference(old: str, new: str) -> str:
    """The first keys that differ between two canonical texts, as `key: old -> new`.

    >>> spec_difference('{"a": {"b": 1, "c": 2}}', '{"a": {"b": 3, "c": 2}}')
    'a.b: 1 -> 3'
    """
    before, after = dict(_leaves(json.loads(old))), dict(_leaves(json.loads(new)))
    keys = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    shown = [
        f"{key}: {before.get(key, 'nothing')} -> {after.get(key, 'nothing')}"
        for key in keys[:_SHOWN]
    ]
    more = [f"and {len(keys) - _SHOWN} more"] if len(keys) > _SHOWN else []
    return "; ".join([*shown, *more])


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every value that is not a table, under its dotted name, as JSON."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, json.dumps(value)
