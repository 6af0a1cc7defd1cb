"""Calling the command inside the test's own process."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from flatmin.cli import main


def call(monkeypatch: Any, capsys: Any, *arguments: object) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `flatmin ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["flatmin", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        main()
    out, err = capsys.readouterr()
    return stop.value.code, out, err
