"""Print where a Chromium is; install one from the system's packages where that is allowed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """The Chromium that CHROMIUM names, or one on the path."""
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    return next((path for path in map(shutil.which, NAMES) if path), None)


def install() -> None:
    """Debian's Chromium, if this is root on Debian; what it says goes to standard error."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return
    quiet = {"stdout": sys.stderr, "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"}}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "chromium"]):
        subprocess.run(["apt-get", *command], check=False, **quiet)


def main() -> int:
    if find() is None:
        install()
    place = find()
    if place is None:
        print(
            "test-browser needs Chromium, and none was found or could be installed: "
            "install the package chromium, or set CHROMIUM to its path",
            file=sys.stderr,
        )
        return 1
    print(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
