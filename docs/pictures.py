"""Draws ceiling.png and flattest-depth.png of docs/images: `python docs/pictures.py`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import flatmin
from flatmin.core.figures import BLACK, BLUE, GREEN, ORANGE, new_figure, save
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


def flattest_depth(path: Path) -> None:
    """S_min against depth on white data, and the flattest depth against |w*| on four data sets."""
    figure, (left, right) = new_figure(2)
    white = flatmin.whitened_samples(n=30, d=4, seed=0).regression()
    depths = np.arange(1, 21)
    for norm, shade in ((1.0, 1.0), (0.4, 0.8), (0.2, 0.6), (0.05, 0.45), (0.01, 0.3)):
        data = _scaled(white, norm)
        values = [flatmin.minimal_sharpness(data, int(depth)).exact for depth in depths]
        left.plot(depths, values, "-", color=BLUE, alpha=shade, lw=1.5)
        best = flatmin.flattest_depth(data)
        left.plot(best, values[best - 1], "*", ms=10, color=ORANGE)
        left.annotate(f"|w*| = {norm:g}", (20, values[-1]), xytext=(4, -3),
                      textcoords="offset points", fontsize=8)  # fmt: skip
    left.set(xlabel="depth L", ylabel="S_min, white data", yscale="log", xlim=(0.5, 25))
    left.set_xticks([1, 5, 10, 15, 20])
    sources = {"diabetes": load_diabetes, "breast cancer": load_breast_cancer, "wine": load_wine}
    curves = {"white data": white}
    for name, load in sources.items():
        table = load()
        X, y = (one - one.mean(axis=0) for one in (table.data, table.target))
        curves[name] = flatmin.read_regression(X / X.std(axis=0), y / y.std())
    norms = np.geomspace(3e-3, 30.0, 400)
    for (name, data), colour in zip(curves.items(), (BLACK, BLUE, ORANGE, GREEN), strict=True):
        found = [flatmin.flattest_depth(_scaled(data, norm)) for norm in norms]
        right.plot(norms, found, "-", color=colour, label=name, lw=1.5)
        if data is not white:
            right.plot(data.w_star_norm, flatmin.flattest_depth(data), "*", ms=11, color=colour)
    right.set(xlabel="|w*|", ylabel="flattest depth", xscale="log")
    right.set_xticks(*_plain((0.01, 0.1, 1, 10)))
    right.legend(frameon=False)
    save(figure, path)


def _plain(ticks: tuple[float, ...]) -> tuple[tuple[float, ...], list[str]]:
    return ticks, [f"{tick:g}" for tick in ticks]


def _scaled(data: flatmin.Regression, norm: float) -> flatmin.Regression:
    return replace(data, w_star=norm * data.w_star / data.w_star_norm)


if __name__ == "__main__":
    images = Path(__file__).parent / "images"
    ceiling(images / "ceiling.png")
    flattest_depth(images / "flattest-depth.png")
