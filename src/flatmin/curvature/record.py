"""A sharpness is a record, not a float: the value comes with what is known about its error."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np

from flatmin.core.shown import Shown
from flatmin.theory.minimal_sharpness import CONVENTION


class Sharpness(Shown):
    """Sharpness of one network (numbers) or of an ensemble (arrays, one entry per network).

    - value: the largest SIGNED eigenvalue found, as a Rayleigh quotient v'Hv with |v| = 1;
    - residual: |Hv - value v|. An eigenvalue of H lies within this distance of the value;
    - products: Hessian-vector products used;
    - method: "lanczos", "spectrum" (the d x d reduction at minimisers) or "dense";
    - converged: whether residual <= tolerance * value;
    - vector: the flat eigenvector(s), to be passed back as `start` along a trajectory.
    """

    value: Any
    residual: Any
    products: Any
    method: str
    converged: Any
    vector: Any = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(np.atleast_1d(self.value))

    def __getitem__(self, i: int) -> Sharpness:
        """The record of network i of an ensemble."""
        names = ("value", "residual", "products", "converged")
        return Sharpness(
            **{name: np.atleast_1d(getattr(self, name))[i].item() for name in names},
            method=self.method,
            vector=None if self.vector is None else np.atleast_2d(self.vector)[i],
        )

    def __repr__(self) -> str:
        if np.ndim(self.value):
            low, high = np.min(self.value, initial=np.inf), np.max(self.value, initial=-np.inf)
            done = f"converged={int(np.sum(self.converged))}"
            found = f"networks={len(self)}, least={low:.6g}, largest={high:.6g}, {done}"
        else:
            found = f"value={self.value:.6g}, residual={self.residual:.1e}, "
            found += f"converged={bool(self.converged)}"
        return f"Sharpness({found}, method={self.method!r})"

    def __str__(self) -> str:
        if np.ndim(self.value):
            n, done = len(self), int(np.sum(self.converged))
            low, high = np.min(self.value), np.max(self.value)
            head = f"sharpness of {n} networks from {low:.6g} to {high:.6g}, {done} converged, "
            head += f"largest residual {np.max(self.residual):.1e}"
        else:
            state = "converged" if self.converged else "NOT converged"
            head = f"sharpness {self.value:.12g} +- {self.residual:.1e} ({state}"
            head += f", {self.products} products)"
        return f"{head}; {self.method}; {CONVENTION}"
