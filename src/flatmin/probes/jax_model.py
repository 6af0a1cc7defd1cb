"""A function of a pytree and its data, in JAX, as a symmetric operator.

The loss is a mean over the samples of a batch; batches, and chunks of them, are weighted by their
number of samples. Products are the directional derivative of the gradient; where a function has no
forward derivative they are the gradient of <gradient, v>, and where it has no second one finite
differences of gradients. The Gauss-Newton matrix is
J' (d^2 loss / d output^2) J, with J the Jacobian of the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from flatmin.core.arrays import Float
from flatmin.core.checks import check_choice, check_count
from flatmin.core.errors import DataError, SettingError
from flatmin.probes.differences import Differences, Glance

Function = Callable[[Any, Any], Any]
Product = Callable[..., jax.Array]
MATRICES = ("Hessian", "Gauss-Newton")


class JaxModel:
    """The operator; `how` says which way its products go."""

    def __init__(
        self,
        loss: Function,
        parameters: Any,
        batches: Any,
        model: Function | None = None,
        matrix: str = "Hessian",
        chunk: int | None = None,
    ) -> None:
        if not callable(loss):
            raise SettingError(f"loss must be a function, got {loss!r:.40}")
        for path, leaf in jax.tree_util.tree_leaves_with_path(parameters):
            kind = jnp.asarray(leaf).dtype
            if kind not in (jnp.float32, jnp.float64):
                name = jax.tree_util.keystr(path)
                raise SettingError(
                    f"parameter {name} is of type {kind}: a Hessian needs float32 or 64"
                )
        self.matrix = check_choice("matrix", matrix, MATRICES)
        if matrix == "Gauss-Newton" and model is None:
            raise SettingError("matrix 'Gauss-Newton' needs the model as a function: model=")
        self._given = loss, parameters, model
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
        self._chunk = None if chunk is None else check_count("chunk", chunk)
        self._eps = float(np.finfo(np.dtype(self._at.dtype)).eps)
        self.how = "forward over reverse"
        self.spares = False  # no way is taken for its memory

        def value(flat: jax.Array, batch: Any) -> jax.Array:
            if model is None:
                return jnp.asarray(loss(unravel(flat), batch))
            return jnp.asarray(loss(model(unravel(flat), batch[0]), batch[1]))

        self._check(value)
        gradient = jax.grad(value)
        self._gradient: Product = jax.jit(gradient)
        self._differences = Differences(self._eps)
        self._ways: dict[str, Product] = {
            "forward over reverse": jax.jit(
                lambda w, v, b: jax.jvp(lambda one: gradient(one, b), (w,), (v,))[1]
            ),
            "reverse over reverse": jax.jit(jax.grad(lambda w, v, b: jnp.vdot(gradient(w, b), v))),
            "finite differences": lambda w, v, b: self._differences.product(
                _Pairs(self._gradient, w, v, b),
                float(jnp.linalg.norm(w)),
                float(jnp.linalg.norm(v)),
            ),
        }

        def gauss_newton(w: jax.Array, v: jax.Array, batch: Any) -> jax.Array:
            assert model is not None
            out, back = jax.vjp(lambda one: model(unravel(one), batch[0]), w)
            along = jax.jvp(lambda one: model(unravel(one), batch[0]), (w,), (v,))[1]
            found: jax.Array = back(
                jax.jvp(jax.grad(lambda o: loss(o, batch[1])), (out,), (along,))[1]
            )[0]
            return found

        if matrix == "Gauss-Newton":
            self._ways = {"forward over reverse": jax.jit(gauss_newton)}

    def _check(self, value: Function) -> None:
        """That the first loss is one finite number, and the mean of those of its chunks."""
        first = self._batches[0]
        shape = getattr(jax.eval_shape(value, self._at, first), "shape", None)
        if shape != ():
            raise SettingError(
                f"loss must return one number, got shape {shape}: take its mean over the samples"
            )
        whole = float(value(self._at, first))
        if not np.isfinite(whole):
            raise DataError("the loss of the first batch is not finite")
        mean = sum(share * float(value(self._at, one)) for share, one in chunks(first, self._chunk))
        if abs(mean - whole) > 200.0 * self._eps * max(abs(whole), 1e-3):
            raise SettingError(
                f"chunk: the loss of a batch ({whole:.6g}) is not the mean of that of its chunks "
                f"({mean:.6g}): normalisation over a batch and losses that sum do not allow chunks"
            )

    @property
    def precision(self) -> float:
        """Of a product."""
        return self._eps ** (2.0 / 3.0) if self.how == "finite differences" else self._eps

    @property
    def error(self) -> float:
        """Of a product with a unit vector, by finite differences."""
        return self._differences.error

    def block(self, name: str) -> JaxModel:
        """The diagonal block of one entry of a dictionary of parameters."""
        loss, tree, model = self._given

        def within(call: Function) -> Function:
            return lambda one, batch: call({**tree, name: one}, batch)

        loss, model = (within(loss), None) if model is None else (loss, within(model))
        return JaxModel(loss, tree[name], iter(self._batches), model, self.matrix, self._chunk)

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
        flat = ravel_pytree(getattr(given, "vector", given))[0].astype(self._at.dtype)
        if flat.size != self.size:
            raise SettingError(f"a direction must have {self.size} entries, got {flat.size}")
        if not bool(jnp.isfinite(flat).all()) or not bool(flat.any()):
            raise SettingError("a direction must be finite and not zero")
        return flat

    def parts(self, v: jax.Array) -> Iterator[jax.Array]:
        """H_B v of each batch."""
        for batch in self._batches:
            pieces = chunks(batch, self._chunk)
            yield sum((share * self._one(v, one) for share, one in pieces), jnp.zeros_like(v))

    def _one(self, v: jax.Array, batch: Any) -> jax.Array:
        ways = list(self._ways)
        for way in ways[ways.index(self.how) :]:
            try:
                found = self._ways[way](self._at, v, batch)
            except (TypeError, ValueError, NotImplementedError):  # a derivative without a rule
                if way == ways[-1]:
                    raise
                continue
            self.how = way
            return found
        raise AssertionError

    def another_way(self) -> bool:
        """Take the next way to products; False if there is none."""
        ways = list(self._ways)
        if self.how == ways[-1]:
            return False
        self.how = ways[ways.index(self.how) + 1]
        return True

    def gradients(self) -> Iterator[jax.Array]:
        """The gradient of each batch, flat."""
        for batch in self._batches:
            pieces = chunks(batch, self._chunk)
            found = (share * self._gradient(self._at, one) for share, one in pieces)
            yield sum(found, jnp.zeros_like(self._at))


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


def chunks(batch: Any, most: int | None) -> Iterator[tuple[float, Any]]:
    """Pieces of at most so many rows, each with its share of the batch."""
    count = rows(batch)
    for begin in range(0, count, most or count):
        end = min(begin + (most or count), count)

        def cut(leaf: Any, begin: int = begin, end: int = end) -> Any:
            return leaf[begin:end] if np.ndim(leaf) and len(leaf) == count else leaf

        yield (end - begin) / count, jax.tree_util.tree_map(cut, batch)


@dataclass(frozen=True)
class _Pairs:
    """Gradients on both sides of weights w; a vector is its own sketch."""

    gradient: Function
    w: jax.Array
    v: jax.Array
    batch: Any

    def between(self, h: float) -> jax.Array:
        above, below = (
            jnp.asarray(self.gradient(self.w + s * h * self.v, self.batch)) for s in (1.0, -1.0)
        )
        return above - below

    def glance(self, h: float, kept: jax.Array | None) -> Glance:
        return self.look(self.between(h), kept)

    def look(self, vector: jax.Array, kept: jax.Array | None) -> Glance:
        side = 0.0 if kept is None else float(jnp.vdot(vector, kept))
        return Glance(np.asarray(vector, float), float(jnp.vdot(vector, self.v)), side)
