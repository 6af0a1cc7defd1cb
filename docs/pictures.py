"""Draws what is in docs/images/ and no test makes: `python docs/pictures.py`.

These are ceiling.png, atlas-10.png (the paper's data), atlas-diabetes.png and
atlas-two-directions.png.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import flatmin
from flatmin.core.figures import save
from flatmin.data.sets import paper_samples
from flatmin.dynamics.atlas import atlas
from flatmin.dynamics.atlas_figure import atlas_figure
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


def paper_atlas(path: Path) -> None:
    """The paper's data above the ceiling."""
    save(atlas_figure(atlas(paper_samples("linear").regression(), DEPTH, runs=16)), path)


def diabetes_atlas(path: Path) -> None:
    """scikit-learn's diabetes table above the ceiling, features and target standardised."""
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    X, y = ((v - v.mean(axis=0)) / v.std(axis=0) for v in (X, y))
    data = flatmin.Samples.from_arrays(X, y).regression()
    save(atlas_figure(atlas(data, 4, runs=16)), path)


def two_directions_atlas(path: Path) -> None:
    """Data on which two directions are critical at once."""
    data = flatmin.spectrum_samples(
        n=100, d=5, condition_number=100, alignment="weak", seed=0
    ).regression()
    save(atlas_figure(atlas(data, 3, c=np.linspace(0.95, 1.7, 300), runs=16)), path)


if __name__ == "__main__":
    images = Path(__file__).parent / "images"
    ceiling(images / "ceiling.png")
    paper_atlas(images / "atlas-10.png")
    diabetes_atlas(images / "atlas-diabetes.png")
    two_directions_atlas(images / "atlas-two-directions.png")
