"""A function of a pytree and its data, in JAX, as a symmetric operator.

The loss is loss(parameters, batch), a mean over the samples of a batch; batches are weighted by
their number of samples. Products are the directional derivative of the gradient; where a function
has no forward derivative they are the gradient of <gradient, v>.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from flatmin.core.arrays import Float
from flatmin.core.errors import DataError, SettingError

Loss = Callable[[Any, Any], jax.Array]


class JaxModel:
    """The operator; `how` says which way its products go."""

    matrix = "Hessian"

    def __init__(self, loss: Loss, parameters: Any, batches: Any) -> None:
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
            kind = jnp.asarray(leaf).dtype
            if kind not in (jnp.float32, jnp.float64):
                name = jax.tree_util.keystr(path)
                raise SettingError(
                    f"parameter {name} is of type {kind}: a Hessian needs float32 or 64"
                )
        self._at, unravel = ravel_pytree(parameters)
        self.size = int(self._at.size)
        if not self.size:
            raise SettingError("parameters: the tree holds no numbers")
        if not bool(jnp.isfinite(self._at).all()):
            raise DataError("parameters: the tree holds values that are not finite")
        self._batches = as_batches(batches)
        counts = [rows(batch) for batch in self._batches]
        self.shares = [count / sum(counts) for count in counts]
        several = "es" * (len(counts) > 1)
        self.data = f"{sum(counts)} samples in {len(counts)} batch{several}"
        self.precision = float(np.finfo(np.dtype(self._at.dtype)).eps)
        self.how = "forward over reverse"

        def value(flat: jax.Array, batch: Any) -> jax.Array:
            return loss(unravel(flat), batch)

        shape = getattr(jax.eval_shape(value, self._at, self._batches[0]), "shape", None)
        if shape != ():
            raise SettingError(
                f"loss must return one number, got shape {shape}: take its mean over the samples"
            )
        if not bool(jnp.isfinite(value(self._at, self._batches[0]))):
            raise DataError("the loss of the first batch is not finite")
        self._gradient = jax.jit(jax.grad(value))
        self._forward = jax.jit(
            lambda w, v, b: jax.jvp(lambda one: jax.grad(value)(one, b), (w,), (v,))[1]
        )
        self._reverse = jax.jit(jax.grad(lambda w, v, b: jnp.vdot(jax.grad(value)(w, b), v)))

    def gaussian(self, seed: int) -> jax.Array:
        """Drawn by NumPy, in double precision."""
        drawn = np.random.default_rng(seed).standard_normal(self.size)
        return jnp.asarray(drawn, dtype=self._at.dtype)

    def dots(self, basis: list[jax.Array], v: jax.Array) -> Float:
        """In double precision, by NumPy."""
        wide = np.asarray(v, dtype=np.float64)
        return np.array([np.asarray(q, dtype=np.float64) @ wide for q in basis])

    def combine(self, basis: list[jax.Array], coefficients: Float) -> jax.Array:
        """One vector at a time; summed in double precision."""
        total = np.zeros(self.size)
        for q, c in zip(basis, coefficients, strict=True):
            total += c * np.asarray(q)
        return jnp.asarray(total, dtype=self._at.dtype)

    def vector(self, given: Any) -> jax.Array:
        """A direction: flat, or a tree like that of the parameters."""
        flat = ravel_pytree(given)[0].astype(self._at.dtype)
        if flat.size != self.size:
            raise SettingError(f"a direction must have {self.size} entries, got {flat.size}")
        if not bool(jnp.isfinite(flat).all()) or not bool(flat.any()):
            raise SettingError("a direction must be finite and not zero")
        return flat

    def parts(self, v: jax.Array) -> Iterator[jax.Array]:
        """H_B v of each batch."""
        for batch in self._batches:
            if self.how == "forward over reverse":
                try:
                    found = self._forward(self._at, v, batch)
                except TypeError:  # a custom derivative without a forward rule
                    self.how = "reverse over reverse"
            if self.how == "reverse over reverse":
                found = self._reverse(self._at, v, batch)
            yield found

    def another_way(self) -> bool:
        """Take the next way to products; False if there is none."""
        last, self.how = self.how == "reverse over reverse", "reverse over reverse"
        return not last

    def gradients(self) -> Iterator[jax.Array]:
        """The gradient of each batch, flat."""
        for batch in self._batches:
            yield self._gradient(self._at, batch)


def as_batches(batches: Any) -> list[Any]:
    """A list or an iterator is of batches; anything else is one batch."""
    one = isinstance(batches, (tuple, dict, jax.Array, np.ndarray)) or not isinstance(
        batches, Iterable
    )
    found = [batches] if one else list(batches)
    if not found:
        raise DataError("there are no batches (an iterator can be gone through only once)")
    for number, batch in enumerate(found, 1):
        for leaf in jax.tree_util.tree_leaves(batch):
            if jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating) and not bool(
                jnp.isfinite(leaf).all()
            ):
                raise DataError(f"batch {number} of {len(found)} holds values that are not finite")
    return found


def rows(batch: Any) -> int:
    """The number of samples: the length of the first array."""
    for leaf in jax.tree_util.tree_leaves(batch):
        if np.ndim(leaf) and len(leaf):
            return len(leaf)
    raise DataError("a batch holds no array with samples along its first axis")
