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
    lower, upper = found.proves_lower(), found.proves_upper()
    what = f"{found.lower!r} <= S_min <= {found.upper!r} at depth {found.depth}"
    if lower and upper:
        print(f"proved: {what} (relative width {found.width:.1e})")
        return
    ends = " and ".join(name for name, held in (("lower", lower), ("upper", upper)) if not held)
    print(f"not proved, {ends} end: {what}")
    raise typer.Exit(1)
