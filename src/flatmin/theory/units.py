"""What a change of units does: the law, and sizes that obey it, for every rule that stops a run.

Multiply the features by f, the target by g and the weights of all L layers by c, where c^L = g/f
(p stays; docs/theory/units.md has the derivation and which networks it is for). Then

    predictions g     w, w*  g/f     risk  g^2     gradient  g^2/c     Hessian, S, S_min  g^2/c^2
    learning rates and the time of gradient flow  c^2/g^2     steps, states, shares, S/S_min  1

A rule that compares with a fixed number breaks this; one that compares with a size of the problem
at hand, its `Units`, keeps it. These are powers and products of |w*|, |p| and Lam, so they follow
the law to rounding, and to the bit where f, g and c are powers of two: `nth_root` sees to that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flatmin.data.regression import Regression


def nth_root(x: Any, n: int) -> Any:
    """x^(1/n) of x >= 0; multiplying x by 2^(kn) multiplies it by 2^k exactly.

    >>> float(nth_root(3.0 * 2.0**20, 10)) == 4.0 * float(nth_root(3.0, 10))
    True
    """
    mantissa, exponent = np.frexp(x)
    # In [1, 2), so that the root of 1 is 1.
    whole, rest = np.divmod(exponent - 1, n)
    return np.ldexp((2.0 * mantissa) ** (1.0 / n) * np.exp2(rest / n), whole)


@dataclass(frozen=True)
class Units:
    """The sizes of a problem for networks of some depth, at its balanced minimiser."""

    weight: float
    """(|w*|/|p|)^{1/L}, the norm of every layer there."""
    risk: float
    """Lam |w*|^2, the most that w = 0 can be above R_min with this |w*|."""

    @classmethod
    def of(cls, regression: Regression, depth: int, output_norm: float = 1.0) -> Units:
        """Those of these data.

        >>> from flatmin.data.generators import whitened_samples
        >>> white = whitened_samples(n=30, d=4, seed=0).regression()
        >>> round(Units.of(white, 3).risk / white.excess_at_zero, 12)
        1.0
        """
        size = regression.w_star_norm
        weight = float(nth_root(size / output_norm, depth))
        return cls(weight, size * size * regression.largest_eigenvalue)

    @property
    def gradient(self) -> float:
        """That of the gradient's norm."""
        return self.risk / self.weight
