"""Draws edge, density and gelu-torch.png of docs/images; needs PyTorch.

`python docs/edge_pictures.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
from torch import nn

import flatmin
import flatmin.torch as probes
from benchmarks.probe_trainings import trainings
from flatmin.core.figures import BLACK, BLUE, ORANGE, legend_above, new_figure, save
from flatmin.data.sets import paper_samples


def as_modules(matrices: list[np.ndarray]) -> nn.Module:
    """A GELU network of the engine in PyTorch."""
    layers: list[nn.Module] = []
    for matrix in matrices:
        linear = nn.Linear(*matrix.shape[::-1], bias=False, dtype=torch.float64)
        linear.weight.data = torch.from_numpy(np.array(matrix))
        layers += [linear, nn.GELU(approximate="tanh")]
    return nn.Sequential(*layers[:-1])


def figure_7(folder: Path) -> None:
    """Figure 7 of the paper: networks trained by the engine, measured by it and by PyTorch."""
    samples = paper_samples("nonlinear")
    network = flatmin.Architecture.mlp(samples.d, depth=10, activation="gelu-tanh")
    batch = torch.from_numpy(samples.X.copy()), torch.from_numpy(samples.y.copy())[:, None]
    scales = np.repeat(np.linspace(0.428, 0.7, 8), 3)
    figure, (left, right) = new_figure(2, width=9.0)
    for rate, steps, colour in (
        (0.005, 160_000, BLUE),
        (0.02, 40_000, ORANGE),
        (0.07, 16_000, BLACK),
    ):
        flat = [
            flatmin.initialise(network, "gaussian", s, seed=k, networks=1).flat()[0]
            for k, s in enumerate(scales)
        ]
        start = flatmin.Ensemble.from_flat(network, flat)
        end = flatmin.descend(samples, start, learning_rate=rate, steps=steps).ensemble
        engine = flatmin.sharpness(samples, end, tolerance=1e-9).value
        ours = [
            probes.sharpness(as_modules(one), nn.MSELoss(), batch, tolerance=1e-7).value
            if np.isfinite(truth) else np.nan
            for one, truth in zip(end, engine, strict=True)
        ]  # fmt: skip
        left.plot(scales, engine, "o", mfc="none", ms=7, color=colour, label=f"rate {rate:g}")
        left.plot(scales, ours, ".", ms=4, color=colour)
        left.axhline(2.0 / rate, color=colour, ls=":", lw=0.8)
        right.plot(scales, np.abs(np.array(ours) / engine - 1.0) + 1e-16, "o", ms=4, color=colour)
    left.set(yscale="log", xlabel="scale of the initial weights", ylabel="sharpness after training")
    legend_above(left, 3)
    right.axhline(1e-6, color=BLACK, ls="--", lw=1)
    right.set(yscale="log", xlabel="scale of the initial weights", ylabel="relative difference")
    save(figure, folder / "gelu-torch.png")


def main(folder: Path) -> None:
    """Three trainings watched, and the density of the first at its end."""
    figure, panels = new_figure(3, width=10.5, height=3.2)
    for place, (panel, one) in enumerate(zip(panels, trainings(), strict=True)):
        optimizer = one.make(one.model, one.rate)
        monitor = probes.Monitor(one.model, one.loss, one.batch, optimizer, None)
        for step in range(1, one.steps + 1):
            optimizer.zero_grad()
            one.loss(one.model(one.batch[0]), one.batch[1]).backward()
            optimizer.step()
            if step % 10 == 0:
                monitor.check(step)
        table = monitor.table()
        full = table[table["full"]]
        panel.plot(table["step"], table["edge"], color=BLACK, ls="--", lw=1, label="edge")
        panel.plot(table["step"], table["measured"], color=BLUE, lw=1, label="measured")
        panel.vlines(full["step"], full["low"], full["high"], color=ORANGE, lw=2, label="interval")
        panel.set(xlabel="step", title=one.name)
        panel.set_ylim(0.0, 1.6 * float(table["edge"].iloc[0]))
        if place == 0:
            panel.set_ylabel("gauge")
            panel.legend(frameon=False, loc="lower right")
            density = probes.density(one.model, one.loss, one.batch, vectors=4, steps=40)
            save(density.plot(), folder / "density.png")
    save(figure, folder / "edge.png")


if __name__ == "__main__":
    main(Path(__file__).parent / "images")
    figure_7(Path(__file__).parent / "images")
