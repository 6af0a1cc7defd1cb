"""Print where a Chromium is; install one where that is allowed.

In this order: the one that CHROMIUM names, one on the path, Playwright's own; then Debian's
package, if this is root on Debian, and Playwright's download.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import suppress

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 300.0


def find() -> str | None:
    """The Chromium that CHROMIUM names, or one on the path, or Playwright's own."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for path in map(shutil.which, [*NAMES, playwrights()]) if path), None)


def playwrights() -> str:
    """Where Playwright keeps its own, if it has one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        return driver.chromium.executable_path


def install() -> None:
    """Try what may be tried; what it says goes to standard error."""
    commands = [[sys.executable, "-m", "playwright", "install", "chromium"]]
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        apt = ["apt-get", "-qq", "-o", "Acquire::Retries=0"]
        commands = [[*apt, "update"], [*apt, "install", "-y", "chromium"], *commands]
    for command in commands:
        if find() is None:
            with suppress(subprocess.TimeoutExpired, OSError):
                environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
                subprocess.run(
                    command, check=False, timeout=PATIENCE, stdout=sys.stderr, env=environment
                )


def main() -> int:
    named = os.environ.get("CHROMIUM")
    if find() is None and not named:
        install()
    place = find()
    if place is None:
        why = f"CHROMIUM is {named!r}, which is no program" if named else "none could be installed"
        print(
            f"test-browser needs Chromium: {why}; "
            "install the package chromium, or set CHROMIUM to its path",
            file=sys.stderr,
        )
        return 1
    print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
