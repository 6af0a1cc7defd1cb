"""What the statements are checked on: runs of one architecture on one data set, as measured.

Evidence may come from weights in memory, from `flatmin train`, or from the tables of a study; what
was not measured is simply absent, and statements that need it are not applicable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from flatmin.core.arrays import Float, Whole, Yes
from flatmin.core.spectra import singular_values
from flatmin.data.regression import Regression
from flatmin.data.samples import Samples
from flatmin.dynamics.measures import invariants
from flatmin.dynamics.methods import GradientFlow, Method
from flatmin.ledger.record import Place
from flatmin.network.architecture import Family
from flatmin.network.ensemble import Ensemble
from flatmin.theory.minimal_sharpness import minimal_sharpness

EPSILON = float(np.finfo(float).eps)


def initial_epsilon(layers: Sequence[Float]) -> Float:
    """eps = 3 max_k |W_k(0)|_F^2 + 2 sum_k |W_k(0) W_k(0)' - W_{k+1}(0)' W_{k+1}(0)|_2.

    The paper, section 4. It is small for small weights, and for them only: a balanced start has no
    second term.
    """
    largest = np.max([np.sum(w * w, axis=(1, 2)) for w in layers], axis=0)
    defects = [singular_values(defect)[:, 0] for defect in invariants(layers)]
    return np.asarray(3.0 * largest + 2.0 * np.sum(defects, axis=0))


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence:
    """Runs by a method.

    Arrays have one entry per network. `trace[name]` is `[entry, network]` or
    `[entry, network, layer]` and NaN after the end of a run; `last[name]` is `[network, layer]`,
    measured at the final weights.
    """

    regression: Regression
    initial: Ensemble
    init: str
    scale: Float
    settled: Yes
    steps: Float
    excess: Float
    """R - R_min at the end."""
    sharpness: Float
    residual: Float
    """Of the sharpness."""
    trace: dict[str, Float] = field(default_factory=dict, repr=False)
    last: dict[str, Float] = field(default_factory=dict, repr=False)
    method: Method = field(default_factory=GradientFlow)
    error: Float | None = None
    """Sum of the integrator's local error estimates, in the norm of the weights."""
    final: Ensemble | None = None
    samples: Samples | None = None
    names: Sequence[str] | Whole = ()
    """How to call the networks; numbers are those of runs, and without any they are counted."""

    def __len__(self) -> int:
        return len(self.initial)

    @property
    def flow(self) -> bool:
        """Whether these are runs of gradient flow."""
        return self.method.continuous

    @property
    def learning_rate(self) -> Float | None:
        """The learning rate of each run; none for gradient flow."""
        return None if self.flow else np.broadcast_to(self.method.learning_rate, (len(self),))

    @property
    def edge(self) -> Float | None:
        """The largest sharpness at which a minimiser is stable, 2/eta of gradient descent."""
        return None if self.method.edge is None else np.broadcast_to(self.method.edge, (len(self),))

    @property
    def integration_error(self) -> Float:
        """The integrator's own error of each run; 0 without an integrator."""
        return np.zeros(len(self)) if self.error is None else self.error

    @property
    def linear(self) -> bool:
        """Whether the networks are linear."""
        return self.initial.architecture.linear

    @property
    def depth(self) -> int:
        """The number of layers L."""
        return self.initial.architecture.depth

    @property
    def output_norm(self) -> float:
        """|p|."""
        return self.initial.architecture.output_norm

    @property
    def one_output(self) -> bool:
        """Whether the networks are linear with one output, as most of the theory asks."""
        return self.initial.architecture.family is Family.ONE_OUTPUT

    @property
    def plain(self) -> bool:
        """Whether d_L = 1 and p = 1, the setting of small initialisation."""
        return self.one_output and self.initial.architecture.output == (1.0,)

    @property
    def subject(self) -> tuple[object, ...]:
        """What they are runs on: the data, and the shape of the networks."""
        network, data = self.initial.architecture, self.regression
        numbers = data.eigenvalues.tobytes(), data.w_star.tobytes()
        return *numbers, network.widths, network.output_norm, self.linear

    @cached_property
    def time(self) -> Float:
        """The time of each entry; of gradient descent, eta times the step."""
        if "time" in self.trace:
            return self.trace["time"]
        return np.asarray(self.method.learning_rate * self.trace["step"])

    @cached_property
    def layers(self) -> list[Float]:
        """The initial weights."""
        return self.initial.weights()

    @cached_property
    def epsilon(self) -> Float:
        """eps of the initial weights."""
        return initial_epsilon(self.layers)

    @cached_property
    def minimal_sharpness(self) -> float:
        """S_min."""
        return minimal_sharpness(self.regression, self.depth, self.output_norm).exact

    @cached_property
    def largest_norm(self) -> Float:
        """max_k |W_k|_2 along the run, as far as it was measured."""
        first = np.max([singular_values(w)[:, 0] for w in self.layers], axis=0)
        norms = self.along("spectral_norm")
        if norms is None:
            return np.asarray(first)
        return np.asarray(np.fmax(first, np.fmax.reduce(norms, axis=(0, 2))))

    @cached_property
    def minimiser_room(self) -> Float:
        """How far the sharpness may be from that of a minimiser's, since R - R_min is not quite 0.

        H = 2 J' Sigma J + <g, D^2 w>. The first part is the Hessian of a network that is a
        minimiser for the target w instead of w*, so that it is at least S_min of w. This is S_min
        of w* up to a share of (1 - rho)^{-2} - 1 with rho = |Sigma^{1/2}(w - w*)| / |q|, since
        |q q' - q_w q_w'| is at most that share of |q_w|^2 (with several outputs the same of Q'Q, in
        spectral norms). The second part is at most
        |g| (L-1) |p| max_k |W_k|^{L-2} with |g| <= 2 sqrt(Lam (R - R_min)). The residual of the
        sharpness comes on top. For other activations R_min is not the least risk, and only the
        residual is left.
        """
        rounding = 100.0 * EPSILON * self.sharpness
        if not self.linear:
            return np.asarray(self.residual + rounding)
        excess = np.maximum(self.excess, 0.0)
        rho = np.sqrt(excess) / np.linalg.norm(self.regression.q, 2)
        g = 2.0 * np.sqrt(self.regression.largest_eigenvalue * excess)
        bend = (self.depth - 1) * self.largest_norm ** max(self.depth - 2, 0) * self.output_norm
        near = g * bend + self.residual + rounding
        with np.errstate(divide="ignore"):
            share = np.where(rho >= 1.0, np.inf, (1.0 - rho) ** -2.0 - 1.0)
        return np.asarray(near + share * (self.sharpness + near))

    @cached_property
    def excess_risk(self) -> Float:
        """R - R_min along the run, if recorded; what rounding has made negative is 0."""
        return np.maximum(self.trace["excess_risk"], 0.0)

    @cached_property
    def map_error(self) -> Float:
        """Rounding error of w along the run: eps L d_max times |w| + |w*|, and a factor for sums.

        With |w| <= |w*| + |w - w*|, which counts directions that the data do not see as well.
        """
        size = 2.0 * float(np.linalg.norm(self.regression.w_star)) + np.sqrt(self._distance)
        return np.asarray(4.0 * EPSILON * self.depth * self.widest * size)

    @property
    def _distance(self) -> Float:
        """|w - w*|^2 along the run; 0 if not measured."""
        return np.maximum(self.trace.get("distance", np.zeros((1, len(self)))), 0.0)

    @property
    def widest(self) -> int:
        """The largest dimension that a product of layers sums over."""
        return max(self.regression.d, *self.initial.architecture.widths)

    def risk_error(self, excess: Float) -> Float:
        """Rounding error of R - R_min = (w - w*)' Sigma (w - w*): that of w, and that of the sum.

        The sum loses digits where w - w* lies in directions that the data do not see.
        """
        largest = self.regression.largest_eigenvalue
        error = np.sqrt(largest) * self.map_error
        sums = 4.0 * EPSILON * self.widest * largest * self._distance
        return np.asarray(2.0 * np.sqrt(excess) * error + error**2 + sums)

    def gradient_error(self, gradient: Float, layers: bool = True) -> Float:
        """Rounding error of |grad|^2, from that of grad R^1 = 2 Sigma (w - w*).

        A layer's gradient is that, multiplied by the products on both sides of the layer:
        at most |p| max_k |W_k|^{L-1} times it.
        """
        error = 2.0 * self.regression.largest_eigenvalue * self.map_error
        if layers:
            error = error * self.output_norm * self.largest_norm ** (self.depth - 1)
        error = error.reshape(*error.shape, *(1,) * (gradient.ndim - max(error.ndim, 2)))
        relative = 8.0 * EPSILON * self.depth * self.widest
        return np.asarray(2.0 * gradient * error + error**2 + relative * gradient**2)

    def along(self, name: str) -> Float | None:
        """A quantity over its entries and, last, at the final weights; None if not measured."""
        parts = [self.trace[name]] if name in self.trace else []
        if name in self.last:
            parts.append(self.last[name][None])
        return np.concatenate(parts) if parts else None

    def last_recorded(self, name: str) -> Float:
        """The last entry of a quantity's trace that each run has."""
        values = self.trace[name]
        known = np.isfinite(values if values.ndim == 2 else values.sum(axis=2))
        last = len(known) - 1 - np.argmax(known[::-1], axis=0)
        return np.asarray(values[last, np.arange(len(self))])

    def some(self, chosen: Yes) -> Evidence:
        """The evidence of the chosen networks only."""

        names = ("scale", "settled", "steps", "excess", "sharpness", "residual", "error")
        each = {name: getattr(self, name) for name in (*names, "final")}
        picked: Any = {name: one if one is None else one[chosen] for name, one in each.items()}
        return replace(
            self,
            **picked,
            initial=self.initial[chosen],
            method=self.method.some(chosen),
            trace={name: values[:, chosen] for name, values in self.trace.items()},
            last={name: values[chosen] for name, values in self.last.items()},
            names=self.names[chosen]
            if isinstance(self.names, np.ndarray)
            else [self.name(int(i)) for i in np.flatnonzero(chosen)],
        )

    def name(self, network: int) -> str:
        """How to call a network."""
        if isinstance(self.names, np.ndarray):
            return f"run {self.names[network]}"
        return self.names[network] if self.names else f"network {network}"

    def place(self, *axes: str, more: str = "") -> Place:
        """Names for the entries of arrays with these axes: "network" by name, "entry" by its time
        or step, others by the number along them, from 1; without any, of runs that are one case."""

        def describe(index: tuple[int, ...]) -> str:
            found = dict(zip(axes, index, strict=False))
            words = [f"depth {self.depth}{more}"]
            if "network" in found:
                words.append(self.name(found["network"]))
            if "entry" in found:
                name, sign = ("time", "t = ") if "time" in self.trace else ("step", "step ")
                times = self.trace.get(name, np.empty((0, len(self))))[found["entry"] :]
                words.append(f"{sign}{times[0, found['network']]:.4g}" if len(times) else "the end")
            others = (axis for axis in found if axis not in ("network", "entry"))
            return ", ".join([*words, *(f"{axis} {found[axis] + 1}" for axis in others)])

        return Place(describe, axes)


def largest_error(*cases: Evidence) -> float | None:
    """The integrator's own error, the largest of all networks."""
    errors = [float(np.max(runs.error)) for runs in cases if runs.error is not None]
    return max(errors, default=None)
