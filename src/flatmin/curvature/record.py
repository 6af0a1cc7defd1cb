"""A sharpness is a record, not a float: the value comes with what is known about its error."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from flatmin.core.arrays import Float
from flatmin.core.shown import Shown
from flatmin.theory.minimal_sharpness import CONVENTION

EXACT, INERTIA, RANDOM, NONE = "exact spectrum", "inertia", "random start", "none"
"""Why an interval holds; see `interval`."""


class Sharpness(Shown):
    """Sharpness of one network (numbers) or of an ensemble (arrays, one entry per network).

    - value: the largest SIGNED eigenvalue found, as a Rayleigh quotient v'Hv with |v| = 1;
    - residual: |Hv - value v|. An eigenvalue of H lies within this distance of the value;
    - products: Hessian-vector products used;
    - method: "lanczos", "spectrum" (the d x d reduction at minimisers) or "dense";
    - low, high: the largest eigenvalue lies between them, rounding included;
    - proof: why: "exact spectrum", "inertia" (of high I - H), "random start" or "none". A residual
      is no proof: it says that an eigenvalue is near, not that it is the largest;
    - chance: how likely the interval is wrong, at most: 0 if proved, 1 if there is no proof;
    - converged: whether there is a proof and high - low <= tolerance * value;
    - vector: the flat eigenvector(s), to be passed back as `start` along a trajectory.
    """

    value: Any
    residual: Any
    products: Any
    method: str
    converged: Any
    vector: Any = field(default=None, repr=False)
    low: Any = 0.0
    high: Any = np.inf
    proof: Any = NONE
    chance: Any = 1.0

    def __len__(self) -> int:
        return len(np.atleast_1d(self.value))

    def __getitem__(self, i: int) -> Sharpness:
        """The record of network i of an ensemble."""
        vector = None if self.vector is None else np.atleast_2d(self.vector)[i]
        one = {name: self._each(name)[i].item() for name in _EACH}
        return Sharpness(method=self.method, vector=vector, **one)

    def _each(self, name: str) -> Any:
        """A field as an array, one entry per network."""
        return np.broadcast_to(getattr(self, name), np.shape(np.atleast_1d(self.value)))

    def some(self, which: Any) -> Sharpness:
        """The record of some networks of an ensemble."""
        chosen: dict[str, Any] = {name: self._each(name)[which] for name in _EACH}
        return replace(self, vector=np.array(self.vector)[which], **chosen)

    def with_some(self, which: Any, other: Sharpness) -> Sharpness:
        """The record with that of another ensemble in the places `which`."""
        changed: dict[str, Any] = {name: np.array(self._each(name)) for name in _EACH}
        changed["proof"] = changed["proof"].astype(object)
        for name, column in changed.items():
            column[which] = other._each(name)
        changed["proof"] = changed["proof"].astype(str)
        changed["vector"] = np.array(self.vector)
        changed["vector"][which] = other.vector
        return replace(self, **changed)

    def __repr__(self) -> str:
        if np.ndim(self.value):
            low, high = np.min(self.value, initial=np.inf), np.max(self.value, initial=-np.inf)
            done = f"converged={int(np.sum(self.converged))}"
            found = f"networks={len(self)}, least={low:.6g}, largest={high:.6g}, {done}"
        else:
            found = f"value={self.value:.6g}, residual={self.residual:.1e}, "
            found += f"converged={bool(self.converged)}"
        return f"Sharpness({found}, method={self.method!r})"

    @property
    def argument(self) -> str:
        """Between what the largest eigenvalue lies, and why, in words.

        >>> found = {"value": 4.0, "residual": 0.0, "products": 1, "method": "lanczos"}
        >>> Sharpness(**found, converged=True, low=4.0, high=4.5, proof=INERTIA).argument
        'within 1.2e-01 of it, by inertia'
        >>> Sharpness(**found, converged=False).argument
        'not certain that it is the largest'
        """
        proofs = [str(proof) for proof in np.unique(self._each("proof")) if proof != NONE]
        if not proofs or np.any(self._each("proof") == NONE):
            lacking = int(np.sum(self._each("proof") == NONE))
            of = f" of {lacking} of them" if np.ndim(self.value) else ""
            return f"not certain{of} that it is the largest"
        spread = np.subtract(self.high, self.low)
        width = np.max(np.divide(spread, self.value, out=np.array(spread), where=spread > 0))
        return f"within {width:.1e} of it, by {' and '.join(proofs)}"

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
        head += f"; {self.argument}"
        return f"{head}; {self.method}; {CONVENTION}"


def unproved(
    method: str, value: Float, residual: Float, products: ArrayLike, vector: Float
) -> Sharpness:
    """The record of an ensemble whose vectors were found, and nothing more is known."""
    return Sharpness(
        value=value,
        residual=residual,
        products=np.asarray(products, dtype=np.int64),
        method=method,
        converged=np.zeros(len(value), dtype=bool),
        vector=vector,
    )


_EACH = ("value", "residual", "products", "converged", "low", "high", "proof", "chance")
"""The fields with an entry per network, besides the vector."""
