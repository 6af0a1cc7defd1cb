"""What the bytes of a result depend on besides the spec: flatmin and the libraries below it."""

from __future__ import annotations

from importlib.metadata import version

import flatmin
from flatmin.lanes.compiling import kernels_version

_LIBRARIES = ("numpy", "scipy", "numba", "pyarrow")


def versions() -> dict[str, str]:
    """flatmin, a hash of its kernels' sources, and the libraries that compute and write.

    >>> sorted(versions())
    ['flatmin', 'kernels', 'numba', 'numpy', 'pyarrow', 'scipy']
    """
    own = {"flatmin": flatmin.__version__, "kernels": kernels_version()}
    return own | {name: version(name) for name in _LIBRARIES}


def difference(ours: dict[str, str], theirs: dict[str, str]) -> str:
    """What differs, as `flatmin 0.2 instead of 0.1`; empty if nothing does.

    >>> difference({"flatmin": "0.1", "numpy": "2.0"}, {"flatmin": "0.2", "numpy": "2.0"})
    'flatmin 0.2 instead of 0.1'
    """
    return ", ".join(
        f"{name} {theirs.get(name, 'missing')} instead of {wanted}"
        for name, wanted in ours.items()
        if theirs.get(name) != wanted
    )
