"""Ensembles by gradient flow on which everything that applies is checked.

| preset       | runs                                                                         |
| ------------ | ---------------------------------------------------------------------------- |
| small-init   | MLPs with one layer 0, at the scale of assumption (A2) and 10 and 100 times it |
| residual     | residual networks with and without noise, L and d doubled twice               |
| multivariate | the same with several outputs and no p                                       |

Data are drawn anew for every seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from flatmin.core.arrays import Float
from flatmin.core.checks import check_choice
from flatmin.core.progress import Progress, advancing
from flatmin.core.seeds import generator
from flatmin.data.generators import gaussian_samples, spectrum_samples
from flatmin.data.samples import Samples
from flatmin.dynamics.flow import flow
from flatmin.dynamics.recording import Recording, recordable
from flatmin.ledger.collect import evidence_of
from flatmin.ledger.evidence import Evidence, initial_epsilon
from flatmin.network.architecture import Architecture, residual_output_vector
from flatmin.network.initialisation import initialise

RTOL = 1e-10
# Share of the largest scale that assumption (A2) allows.
SHARE = 0.9
NOISE = 0.25
# Integrator steps between entries.
EVERY = 4
# (d, L): one of them doubled again and again.
SIZES = ((4, 5), (4, 10), (4, 20), (8, 5), (16, 5))

Part = Callable[[], Evidence]


def run_preset(name: str, seed: int = 0, progress: Progress = None) -> list[Evidence]:
    """The evidence of a preset; `progress` is told 1 after each of its parts."""
    parts = list(PRESETS[check_choice("preset", name, PRESETS)](seed))
    cases = []
    with advancing(progress, name, len(parts)) as advance:
        for part in parts:
            cases.append(part())
            if advance is not None:
                advance(1)
    return cases


def small_init(seed: int) -> Iterator[Part]:
    """MLPs with their first layer 0, so that (A1) holds; the smallest scale meets (A2)."""
    ill = spectrum_samples(50, d=5, condition_number=10.0, seed=seed)
    for number, samples in enumerate((gaussian_samples(seed=seed), ill)):
        for depth in (2, 3, 5):
            architecture = Architecture.mlp(samples.d, depth)
            addresses = [("small-init", number, depth, i) for i in range(8)]
            unit = initialise(architecture, "zero-layer", 1.0, seed, addresses)
            # eps grows with the square of the scale, and (A2) asks for 32 L sqrt(eps) <= 1.
            allowed = SHARE / (32.0 * depth * np.sqrt(initial_epsilon(unit.layers()).max()))
            for scale in (allowed, 10.0 * allowed, 100.0 * allowed):
                yield partial(_flow, samples, architecture, "zero-layer", scale, seed, addresses)


def residual(seed: int) -> Iterator[Part]:
    """Square networks with a fixed p; the target is near p, so that the initial risk is small."""
    for number in range(6):
        for d, depth in SIZES:
            p = residual_output_vector(d, seed)
            samples = near(p[None], seed, "residual", number)
            network = Architecture.residual(d, depth, p)
            addresses = [("residual", number, d, depth, i) for i in range(12)]
            # Without noise all networks are the same one.
            for noise, drawn in ((0.0, addresses[:1]), (NOISE, addresses)):
                yield partial(_flow, samples, network, "residual", noise, seed, drawn)


def multivariate(seed: int) -> Iterator[Part]:
    """Square networks without p, each with data of its own: the target is near the initial product.

    The product of the initial weights is further from the identity the larger d is, so that a
    target near the identity would not keep the initial risk small.
    """
    for number in range(8):
        for d, depth in SIZES:
            architecture = Architecture.multivariate(d, depth, d)
            addresses = [("multivariate", number, d, depth)]
            for noise in (0.0, NOISE):
                initial = initialise(architecture, "residual", noise, seed, addresses)
                product = np.linalg.multi_dot(initial[0][::-1])
                samples = near(product, seed, "multivariate", number)
                yield partial(_flow, samples, architecture, "residual", noise, seed, addresses)


PRESETS: dict[str, Callable[[int], Iterator[Part]]] = {
    "small-init": small_init,
    "residual": residual,
    "multivariate": multivariate,
}


def near(rows: Float, seed: int, *address: str | int) -> Samples:
    """Gaussian data whose target is the given matrix moved by 0.5, whatever its size, and noise."""
    outputs, d = rows.shape
    random = generator(seed, *address, d)
    X = random.standard_normal((10 * d, d))
    move = random.standard_normal((outputs, d))
    target = rows + 0.5 * move / np.linalg.norm(move)
    Y = X @ target.T + 0.1 * random.standard_normal((10 * d, outputs))
    return Samples.from_arrays(X, Y[:, 0] if outputs == 1 else Y)


def _flow(
    samples: Samples,
    architecture: Architecture,
    init: str,
    scale: float,
    seed: int,
    addresses: Sequence[tuple[str | int, ...]],
) -> Evidence:
    initial = initialise(architecture, init, scale, seed, addresses)
    # No statement is about the sharpness on the way.
    quantities = [name for name in recordable(architecture) if name != "sharpness"]
    recording = Recording(EVERY, quantities)
    outcome = flow(samples.regression(), initial, rtol=RTOL, recording=recording)
    return evidence_of(samples, initial, outcome, init=init, scale=scale)
