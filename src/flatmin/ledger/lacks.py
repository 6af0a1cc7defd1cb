"""Words for records: what a statement needs that the runs do not have, and spans of numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from flatmin.core.arrays import Float
from flatmin.ledger.evidence import Evidence


def lacks(
    runs: Evidence,
    *,
    linear: bool = True,
    one_output: bool = False,
    plain: bool = False,
    layers: int = 1,
    inits: Collection[str] = (),
    measured: Sequence[str] = (),
    final: Sequence[str] = (),
    minimiser: bool = False,
) -> str:
    """What is missing, to be read after "needs"; empty if nothing is.

    `plain` is d_L = 1 and p = 1; `measured` are quantities of a trace or of the final weights,
    `final` of the final weights only; `minimiser` asks for a run that found one.
    """
    architecture = runs.initial.architecture
    if linear and not architecture.linear:
        return f"a linear network (here {architecture.beyond})"
    if (one_output or plain) and architecture.output is None:
        return f"one output (here {architecture.widths[-1]})"
    if plain and not runs.plain:
        norm = f"{np.float64(runs.output_norm):.4g}"
        return f"d_L = 1 and p = 1 (here d_L = {architecture.widths[-1]}, |p| = {norm})"
    if runs.depth < layers:
        return f"at least {layers} layers (here {runs.depth})"
    if inits and runs.init not in inits:
        return f"{' or '.join(inits)} initialisation (here {runs.init})"
    missing = [name for name in measured if name not in runs.trace and name not in runs.last]
    if missing:
        names = ", ".join(f'"{name}"' for name in missing)
        return f"a trace: [record] every = N, quantities = [{names}] in the study"
    if any(name not in runs.last for name in final):
        return "the final norms of layers: [record] layers = true in the study"
    if minimiser and not runs.settled.any():
        return f"a run that reached a minimiser: 0 of {len(runs)} did"
    return ""


def span(values: Float) -> str:
    """From the least to the largest of the values that are finite."""
    known = values[np.isfinite(values)]
    return f"{known.min():.3g} to {known.max():.3g}" if len(known) else "nowhere"
