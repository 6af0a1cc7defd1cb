"""`flatmin verify`: check the proof of a value of S_min."""

from __future__ import annotations

from typing import Annotated

import typer


def verify(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="What `flatmin predict --certificate` wrote.")
    ],
) -> None:
    """Check a certificate of S_min without solving anything; exit code 1 if it proves nothing."""
    from flatmin.theory.certificate import read_certificate

    found = read_certificate(file)
    print(found)
    if not found.verify():
        raise typer.Exit(1)
