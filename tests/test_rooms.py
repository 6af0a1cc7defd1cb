"""The house: rooms in their order, imports only downwards, and ARCHITECTURE.md in agreement."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "flatmin"
# From the ground up. A room imports only from itself and from the rooms before it.
ROOMS = (
    *("core", "data", "theory", "network", "lanes", "curvature", "dynamics"),
    *("estimators", "probes", "study", "ledger", "paper", "lab", "cli"),
)
# Modules beside the rooms that only pass on what is in one of them, under a name people look for.
DOORS = ("jax.py", "sklearn.py", "torch.py")


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules of flatmin imported at run time, at the top or inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flatmin."):
            yield node.module or ""
        elif isinstance(node, ast.ImportFrom) and node.module == "flatmin":
            yield from (f"flatmin.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("flatmin."))
        else:
            yield from imported(node)


def room(module: str) -> str | None:
    """The room of a module; None for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in ROOMS else None


def test_every_module_is_in_a_room():
    found = {path.relative_to(SOURCES).parts[0] for path in SOURCES.rglob("*.py")}
    assert found == {*ROOMS, *DOORS, "__init__.py", "__main__.py"}


@pytest.mark.parametrize("name", DOORS)
def test_doors_define_nothing(name):
    content = ast.parse((SOURCES / name).read_text()).body[1:]
    names = [node for node in content if isinstance(node, ast.Assign)]
    assert all(isinstance(node, ast.ImportFrom | ast.Assign) for node in content)
    assert [ast.unparse(node.targets[0]) for node in names] == ["__all__"]


@pytest.mark.parametrize("name", ROOMS)
def test_imports_go_down(name):
    wrong = []
    for path in sorted((SOURCES / name).rglob("*.py")):
        for module in imported(ast.parse(path.read_text())):
            other = room(module)
            if other is not None and ROOMS.index(other) > ROOMS.index(name):
                wrong.append(f"{path.relative_to(SOURCES)} imports {module}")
    assert not wrong


def test_only_the_lanes_compile():
    for path in SOURCES.rglob("*.py"):
        if "lanes" not in path.relative_to(SOURCES).parts[:1]:
            assert not re.search(r"^\s*(import|from) numba", path.read_text(), re.M), path


def test_the_architecture_names_the_rooms_in_this_order():
    rows = re.findall(r"^\| `(\w+)/` \|", (ROOT / "ARCHITECTURE.md").read_text(), re.M)
    assert rows == list(ROOMS)


def test_the_architecture_names_no_module_that_is_not_there():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    paths = {path for path in re.findall(r"`((?:\w+/)+\w+\.py)`", text)}
    assert paths, "the architecture names modules by their paths"
    missing = [
        path for path in paths if not any((base / path).exists() for base in (SOURCES, ROOT))
    ]
    assert not missing
