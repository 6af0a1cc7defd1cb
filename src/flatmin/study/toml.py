"""A validated study as TOML text; reading it back gives the same study.

People read and change it, so a list is one line and a range such as linspace is one value: the
library tomli-w gives every number of a list a line and every range a table of its own.
"""

from __future__ import annotations

import json
from typing import Any


def write(tables: dict[str, Any]) -> str:
    """TOML text of nested dictionaries: plain values first, then tables, then lists of tables."""
    return "\n".join(_lines(tables, ())).strip() + "\n"


def _lines(table: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    plain, inner, repeated = {}, {}, {}
    for key, value in table.items():
        if value and isinstance(value, list) and all(isinstance(one, dict) for one in value):
            repeated[key] = value
        elif isinstance(value, dict) and not path:
            inner[key] = value
        else:
            plain[key] = value
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in inner.items():
        lines += ["", f"[{key}]", *_lines(value, (*path, key))]
    for key, value in repeated.items():
        for one in value:
            lines += ["", f"[[{'.'.join((*path, key))}]]", *_lines(one, (*path, key))]
    return lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON leaves the delete character as it is; TOML does not take it.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return repr(value)
