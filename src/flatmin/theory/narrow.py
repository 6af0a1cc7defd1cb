"""Several outputs and hidden layers too narrow to reach R_min: a lower bound that still holds.

With a hidden layer of r < rank Q units, Q = P* Sigma^{1/2}, the product has rank at most r, and the
least risk is reached exactly where P Sigma^{1/2} = Q_r, a best approximation of Q of rank r (Eckart
and Young 1936): that of the r largest singular values. At such weights

    S  >=  2 L max_{|x|=1} (x'Sigma x)^{1/L} |Q_r x|^{2-2/L},

which is S_min of the data with P_r = Q_r Sigma^{-1/2} in place of P*. The residual Q - Q_r does not
vanish, but there are directions in which its terms do; docs/theory/several-outputs.md has the
proof. So above 2 over this number gradient descent settles at no best point of a narrow network
either. On white data the chain of `minimisers` for P_r attains it; in general how far it is from
the flattest best point is not known.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flatmin.core.checks import check_count
from flatmin.data.regression import Regression


def best_of_rank(regression: Regression, rank: int) -> Regression:
    """The same features with what a product of this rank can learn: P_r for P*, and its risk.

    >>> from flatmin.data.generators import gaussian_samples
    >>> from flatmin.theory.minimal_sharpness import minimal_sharpness
    >>> data = gaussian_samples(n=50, d=5, seed=0, targets=3).regression()
    >>> narrow = best_of_rank(data, 1)
    >>> narrow.risk_min > data.risk_min
    True
    >>> minimal_sharpness(narrow, 4).exact <= minimal_sharpness(data, 4).exact
    True
    """
    rank = check_count("rank", rank)
    if rank >= min(regression.targets, regression.rank):
        return regression
    seen = slice(regression.d - regression.rank, None)
    basis, root = regression.eigenvectors[:, seen], np.sqrt(regression.eigenvalues[seen])
    left, values, right = np.linalg.svd((regression.w_star.T @ basis) * root, full_matrices=False)
    kept = (left[:, :rank] * values[:rank]) @ right[:rank]
    return replace(
        regression,
        w_star=np.ascontiguousarray(basis @ (kept / root).T),
        risk_min=regression.risk_min + float(np.sum(values[rank:] ** 2)),
    )
