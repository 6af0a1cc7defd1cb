"""Every test that a promise names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def test_promises_name_tests_that_exist():
    text = (ROOT / "docs" / "promises.md").read_text()
    named = NAMED.findall(text)
    assert len(named) >= 30
    assert len(named) == text.count("`tests/") - text.count("`tests/adversary/README.md`")
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, name


def test_every_promise_names_one():
    sections = (ROOT / "docs" / "promises.md").read_text().split("\n## ")[1:]
    promises = [one for section in sections for one in section.split("\n- ")[1:]]
    lies = "**It can lie.**"  # what is not promised
    assert [one for one in promises if not NAMED.search(one) and not one.startswith(lies)] == []
