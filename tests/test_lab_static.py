"""The page's modules: they read as JavaScript, and name only what is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import flatmin.lab

STATIC = Path(flatmin.lab.__file__).parent / "static"
MODULES = sorted(STATIC.glob("*.js"))
TEXT = {one.name: one.read_text(encoding="utf-8") for one in MODULES}


@pytest.mark.parametrize("module", MODULES, ids=lambda one: one.name)
def test_a_module_imports_what_another_exports(module):
    imports = re.findall(r'^import \{([^}]*)\} from "\./(.*?)"', TEXT[module.name], re.M)
    for names, source in imports:
        for name in names.replace(" ", "").split(","):
            kinds = r"^export (async )?(function|const|class) "
            assert re.search(rf"{kinds}{re.escape(name)}(?![\w$])", TEXT[source], re.M), name


def test_every_element_that_is_named_is_on_the_page():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    named = {name for text in TEXT.values() for name in re.findall(r'\$\("([\w-]+)"\)', text)}
    assert len(named) > 50
    assert named <= set(ids)


def test_the_hooks_that_are_promised():
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    promised = "run pause rate scale depth map sharpness-plot risk-plot status share"
    for name in [*promised.split(), "copy-python", "copy-command"]:
        assert page.count(f'data-testid="{name}"') == 1


def test_modules_read_as_javascript(tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is an extra check: the browser's tests run the modules")
    for module in MODULES:  # an import or export is not read in a file of another suffix
        copy = tmp_path / f"{module.stem}.mjs"
        copy.write_bytes(module.read_bytes())
        subprocess.run([node, "--check", copy], check=True)
