"""`make install`: where the command is, said by the Makefile and by the README."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_install_says_where_the_command_is(tmp_path: Path) -> None:
    place = tmp_path / "venv"
    place.mkdir()
    (place / ".ready").touch()  # an environment in place: nothing is installed
    done = subprocess.run(
        ["make", "install", f"VENV={place}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert f"{place}/bin/flatmin" in done.stdout
    assert f"source {place}/bin/activate" in done.stdout
    assert [one.name for one in place.iterdir()] == [".ready"]


def test_the_readme_says_it_before_the_first_command() -> None:
    text = (ROOT / "README.md").read_text()
    assert 0 < text.index(".venv/bin/flatmin") < text.index("$ flatmin")
    assert 0 < text.index("source .venv/bin/activate") < text.index("$ flatmin")
