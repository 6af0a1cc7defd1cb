"""Spectra of many matrices; NaN of those that are no numbers.

Weights far out overflow, and LAPACK, given an infinity, writes on the terminal.
"""

from __future__ import annotations

import numpy as np

from flatmin.core.arrays import Float, Yes


def singular_values(matrices: Float) -> Float:
    """Of `[matrix, row, column]`, falling.

    >>> singular_values(np.array([[[3.0, 0.0], [0.0, 4.0]], [[np.inf, 0.0], [0.0, 1.0]]]))
    array([[ 4.,  3.],
           [nan, nan]])
    """
    fine, (count, rows, columns) = _fine(matrices), matrices.shape
    if fine.all():
        return np.asarray(np.linalg.svd(matrices, compute_uv=False))
    found = np.full((count, min(rows, columns)), np.nan)
    found[fine] = np.linalg.svd(matrices[fine], compute_uv=False)
    return found


def eigenvalues(blocks: Float) -> Float:
    """Of symmetric `[matrix, row, column]`, rising."""
    found, fine = np.full(blocks.shape[:2], np.nan), _fine(blocks)
    found[fine] = np.linalg.eigvalsh(blocks[fine])
    return found


def top_pairs(matrices: Float) -> tuple[Float, Float]:
    """The left and the right singular vector of the largest singular value of each matrix."""
    fine, (count, rows, columns) = _fine(matrices), matrices.shape
    left, right = np.full((count, rows), np.nan), np.full((count, columns), np.nan)
    u, _, v = np.linalg.svd(matrices[fine], full_matrices=False)
    left[fine], right[fine] = u[:, :, 0], v[:, 0]
    return left, right


def _fine(matrices: Float) -> Yes:
    return np.asarray(np.isfinite(matrices).all(axis=(1, 2)))
