"""What the engine must know of a method that takes steps: how a gradient moves the weights.

Plain gradient descent keeps nothing but the weights. Another rule keeps vectors beside them, which
are packed, advanced and kept along with the weights; what they mean is the rule's own business.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rule:
    """The rule of a step; the defaults are those of gradient descent."""

    reach: float = 2.0
    """The largest eta S at which a minimiser is stable."""
    pace: float = 1.0
    """How far a steady gradient moves the weights, against gradient descent."""
    cost: float = 1.0
    """Flops of a step, against gradient descent."""
    copies: int = 0
    """How many vectors as long as the weights are kept beside them; 0 at the start of a run."""
    kernel: tuple[float | None, ...] | None = None
    """What the kernels of descent take; None is gradient descent."""


PLAIN = Rule()
