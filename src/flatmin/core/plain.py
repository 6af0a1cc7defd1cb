"""Plain values, as JSON has them: of records, arrays and paths; what is not finite is null."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from enum import Enum
from math import isfinite
from pathlib import Path
from typing import Any


def plain(value: Any) -> Any:
    """The value as JSON has it; of a record its `contents`, of another dataclass its fields.

    >>> plain({"rates": (0.5, float("inf")), "folder": Path("out")})
    {'rates': [0.5, None], 'folder': 'out'}
    """
    if hasattr(value, "contents"):
        return plain(dict(value.contents()))
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if hasattr(value, "tolist"):  # of NumPy
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def json_text(value: Any) -> str:
    """The value as JSON."""
    return json.dumps(plain(value), indent=2, allow_nan=False)
