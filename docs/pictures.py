"""Draws docs/images/ceiling.png: `python docs/pictures.py` from the project's folder."""

from __future__ import annotations

from pathlib import Path

import flatmin
from flatmin.core.figures import save
from flatmin.dynamics.figures import rate_figure
from flatmin.network.architecture import residual_output_vector

DEPTH = 10


def ceiling(path: Path) -> None:
    """Which runs learn against the rate, for two data sets of condition number 10."""
    network = flatmin.Architecture.residual(5, DEPTH, residual_output_vector(5, seed=0))
    titles = {"spread": "w* on all directions", "weak": "w* on weak directions"}
    curves, advised = {}, {}
    for alignment, title in titles.items():
        data = flatmin.spectrum_samples(
            n=50, d=5, condition_number=10, alignment=alignment, seed=0
        ).regression()
        curves[title] = flatmin.rate_curve(data, network, "residual", 0.25)
        advised[title] = flatmin.advise(data, network, "residual", 0.25).learning_rate
    save(rate_figure(curves, advised), path)


if __name__ == "__main__":
    ceiling(Path(__file__).parent / "images" / "ceiling.png")
