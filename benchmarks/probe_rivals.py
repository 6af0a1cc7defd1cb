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


def pyhessian(case: ProbeCase, seed: int, products: int | None) -> tuple[float, int]:
    """Power iteration."""
    values, answer = _power(case, seed, {} if products is None else {"maxIter": products, "tol": 0})
    return answer, len(values)


def pyhessian_path(case: ProbeCase, seed: int) -> list[float]:
    """The value after each of its products, up to 1000, or until two are alike to 1e-10."""
    return _power(case, seed, {"maxIter": 1000, "tol": 1e-10})[0]


def pyhessian_stop(path: list[float], tolerance: float) -> int:
    """After how many products it would have stopped with this tolerance."""
    for number in range(1, len(path)):
        before = path[number - 1]
        if abs(before - path[number]) / (abs(before) + 1e-6) < tolerance:
            return number + 1
    return len(path)


def _power(case: ProbeCase, seed: int, limits: dict[str, Any]) -> tuple[list[float], float]:
    """The values of all its products, and its answer."""
    module: Any = import_module("pyhessian.hessian")
    values: list[float] = []
    plain = module.hessian_vector_product

    def watched(gradients: Any, parameters: Any, v: Any) -> Any:
        found = plain(gradients, parameters, v)
        values.append(float(sum((a * b).sum() for a, b in zip(found, v, strict=True))))
        return found

    torch.manual_seed(seed)
    module.hessian_vector_product = watched
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        tool = module.hessian(case.model, case.loss, data=case.batch, cuda=False)
        answer = tool.eigenvalues(**limits)[0][0]
    finally:
        module.hessian_vector_product = plain
        torch.set_default_dtype(kind)
        case.model.zero_grad()
    return values, float(answer)


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
