"""What every command says about itself, and which words it uses for what it takes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import typer.main

from commands import call
from flatmin.cli import app

TYPES = re.compile(r"<\w|\bTEXT\b|\bINTEGER\b|\bFLOAT\b")


def every_command() -> list[tuple[str, ...]]:
    """The words of every command and subcommand, found from the parser itself."""
    root: Any = typer.main.get_command(app)
    found: list[tuple[str, ...]] = [()]
    for name, command in root.commands.items():
        found.append((name,))
        found += [(name, inner) for inner in getattr(command, "commands", {})]
    return found


def test_all_commands_are_found():
    assert {("predict",), ("train",), ("check",), ("study", "plot")} <= set(every_command())


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_help_is_short_too_and_says_what_is_expected(monkeypatch, capsys, words):
    code, long, err = call(monkeypatch, capsys, *words, "--help")
    assert (code, err) == (0, "")
    assert call(monkeypatch, capsys, *words, "-h") == (0, long, "")
    assert " ".join((*words, "[OPTIONS]")) in long.splitlines()[0]
    assert not TYPES.search(long), "an option without a metavar: see cli/commands.py"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (("predict",), ["--target COLUMN", "--depth N", "--scale SCALE", "--figure FILE"]),
        (("train",), ["--learning-rate RATE", "--out FOLDER", "--init NAME"]),
        (("study", "plot"), ["--out FILE", "--by COLUMN"]),
        (("study", "run"), ["--out FOLDER", "--scheduler ADDRESS"]),
        (("bench",), ["bench [OPTIONS] [CASE]..."]),
    ],
)
def test_what_options_take(monkeypatch, capsys, words, shown):
    out = call(monkeypatch, capsys, *words, "-h")[1]
    assert [one for one in shown if one not in out] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--depth", "three"), "--depth must be a number, got 'three'"),
        (("--depth", "0"), "--depth must be a whole number of at least 1, got '0'"),
        (("--depth", "1.5"), "--depth must be a whole number of at least 1, got '1.5'"),
        (("--depth", "²"), "--depth must be a number, got '²'"),
        (("--depths", "2,many"), "each of --depths must be a number, got 'many'"),
        (("--depths", "2,-1"), "each of --depths must be a whole number of at least 1, got '-1'"),
        (("--depth", "3", "--steps", "many"), "--steps must be a number, got 'many'"),
        (("--depth", "3", "--runs", "0"), "--runs must be a whole number of at least 1, got '0'"),
    ],
)
def test_a_wrong_number_is_refused_by_the_name_typed(monkeypatch, capsys, arguments, message):
    given = ("predict", "examples/gaussian.csv", "--target", "y", *arguments)
    assert call(monkeypatch, capsys, *given) == (2, "", f"flatmin: {message}\n")
