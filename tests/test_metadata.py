"""Files about the project agree with it."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import flatmin

ROOT = Path(__file__).parent.parent


def test_the_citation_is_of_this_version_and_licence():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert citation["title"] == project["name"]
    assert citation["version"] == flatmin.__version__
    assert citation["license"] == project["license"]
    assert citation["keywords"] == project["keywords"]
    # What CFF 1.2.0 requires.
    assert {"authors", "cff-version", "message", "title"} <= set(citation)
    for reference in citation["references"]:
        assert {"authors", "title", "type"} <= set(reference)


def test_hooks_are_local_and_run_what_make_lint_runs():
    """No hook fetches anything, and none checks less than `make lint`."""
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [one["repo"] for one in repositories] == ["local"]
    hooks = [shlex.split(hook["entry"]) for one in repositories for hook in one["hooks"]]
    tools = [" ".join(word for word in hook if not word.startswith("-")) for hook in hooks]
    recipe = (ROOT / "Makefile").read_text().split("\nlint: ")[1].split("\n\n")[0]
    wanted = [line.strip() for line in recipe.splitlines()[1:]]
    wanted = [line.replace("$(BIN)", ".venv/bin").removesuffix(" .") for line in wanted]
    assert tools == [line.replace(" --check", "") for line in wanted]


def test_public_names_are_the_same_to_readers_tools_and_python():
    tree = ast.parse((ROOT / "src" / "flatmin" / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    checked = {alias.asname: node.module for node in block.body for alias in node.names}
    assert {*checked, "__version__"} == set(flatmin.__all__) == set(dir(flatmin))
    for name, module in checked.items():
        assert getattr(flatmin, name) is getattr(import_module(module), name)
    namespace: dict[str, object] = {}
    exec("from flatmin import *", namespace)
    assert set(flatmin.__all__) <= set(namespace)
    with pytest.raises(AttributeError, match="no attribute 'sharpnes'"):
        _ = flatmin.sharpnes


def test_what_public_functions_return_is_public():
    for name in flatmin.__all__:
        value = getattr(flatmin, name)
        if inspect.isfunction(value):
            returned = str(inspect.signature(value).return_annotation)
            words = set(re.findall(r"[A-Z]\w+", returned)) - {"Float", "MinimalSharpness"}
            assert words <= set(flatmin.__all__), name
