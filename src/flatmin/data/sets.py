"""The data of the paper's experiments, as its authors drew them (float32 draws, kept as float64).

`scripts/recover_paper_data.py` regenerates the file with JAX. Three sets: "linear" (n = 50, d = 5,
noise 1, for linear and residual networks), "underdetermined" (n = 15, d = 20, noise 1) and
"nonlinear" (n = 50, d = 5, no noise).
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_choice
from flatmin.core.errors import SettingError
from flatmin.data.samples import Samples

SETS = ("linear", "underdetermined", "nonlinear")


@cache
def _arrays() -> dict[str, Float]:
    with files("flatmin.data").joinpath("sets.npz").open("rb") as file:
        return dict(np.load(file))


def paper_samples(name: str = "linear", *, test: bool = False) -> Samples:
    """The training rows of one experiment, or its test rows.

    >>> paper_samples("linear").regression()
    Regression(n=50, d=5, rank=5, targets=1, risk_min=...)
    """
    check_choice("paper data", name, SETS)
    X, y = (_arrays()[f"{name}_{part}_test" if test else f"{name}_{part}"] for part in "Xy")
    return Samples.from_arrays(X, y)


def paper_output_vector(depth: int | None = None) -> Float:
    """p of the residual networks: of Figures 4 and 5, or of Figure 2 at a depth."""
    name = "residual_p" if depth is None else f"depth_{depth}_p"
    if name not in _arrays():
        raise SettingError(f"the paper has output vectors for depths 5, 10, 20 and 40, got {depth}")
    return _arrays()[name]
