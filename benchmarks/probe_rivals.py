"""Rivals of the probes: each gives the largest eigenvalue of a case and the products it took.

`products` is None for a rival's defaults, or the number that it may take.

- PyHessian: power iteration, until two values differ by 1e-3, 100 at most; it puts the model into
  evaluation mode (the cases are in it already).
- hessian-eigenthings: Lanczos; by default ten eigenvalues of largest magnitude in 20 steps.
- curvlinops: its operator in ARPACK (SciPy's eigsh, which="LA"), to 1 %.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from benchmarks.probe_models import ProbeCase


def pyhessian(
    case: ProbeCase, seed: int, products: int | None, tolerance: float = 0.0
) -> tuple[float, int]:
    """Power iteration."""
    module: Any = import_module("pyhessian.hessian")
    taken, plain = [0], module.hessian_vector_product

    def counted(*arguments: Any) -> Any:
        taken[0] += 1
        return plain(*arguments)

    torch.manual_seed(seed)
    module.hessian_vector_product = counted
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        tool = module.hessian(case.model, case.loss, data=case.batch, cuda=False)
        limits = {} if products is None else {"maxIter": products, "tol": tolerance}
        value = tool.eigenvalues(**limits)[0][0]
    finally:
        module.hessian_vector_product = plain
        torch.set_default_dtype(kind)
        case.model.zero_grad()
    return float(value), taken[0]


def pyhessian_in_truth(case: ProbeCase, seed: int, products: int | None) -> tuple[float, int]:
    """PyHessian with the loosest stopping rule that leaves it right to 1e-3, up to 1000 products.

    Nobody could choose it so: it needs the truth.
    """
    value, taken = pyhessian(case, seed, products)
    for tolerance in (1e-4, 1e-5, 1e-6, 1e-7):
        if abs(value / case.top - 1.0) <= 1e-3:
            break
        value, taken = pyhessian(case, seed, 1000, tolerance)
    return value, taken


def eigenthings(case: ProbeCase, seed: int, products: int | None) -> tuple[float, int]:
    """Lanczos with a fixed number of steps."""
    import hessian_eigenthings as tool

    loss = tool.supervised_loss(case.loss)
    operator = tool.HessianOperator(case.model, [case.batch], loss)
    limits = {} if products is None else {"k": 1, "max_iter": products, "which": "LA"}
    found = tool.lanczos(operator, seed=seed, **limits)
    return float(found.eigenvalues.max()), int(found.iterations)


def curvlinops(case: ProbeCase, seed: int, products: int | None) -> tuple[float, int]:
    """ARPACK; with a number of products, its basis has that size and there is no restart."""
    import numpy as np
    from curvlinops import HessianLinearOperator
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    parameters = list(case.model.parameters())
    inner = HessianLinearOperator(
        case.model, case.loss, parameters, [case.batch], check_deterministic=False
    ).to_scipy(np.float64)
    taken = [0]

    def product(v: Any) -> Any:
        taken[0] += 1
        return inner @ v.ravel()

    operator = LinearOperator(inner.shape, matvec=product, dtype=float)
    start = np.random.default_rng(seed).standard_normal(inner.shape[0])
    limits: dict[str, Any] = {} if products is None else {"ncv": max(products, 3), "maxiter": 1}
    try:
        value = eigsh(operator, k=1, which="LA", tol=1e-2, v0=start, **limits)[0][0]
    except ArpackNoConvergence:
        value = float("nan")
    return float(value), taken[0]


RIVALS = {"PyHessian": pyhessian, "hessian-eigenthings": eigenthings, "curvlinops": curvlinops}
