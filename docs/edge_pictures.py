"""Draws edge.png and density.png of docs/images: `python docs/edge_pictures.py`; needs PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import flatmin.torch as probes
from benchmarks.probe_trainings import trainings
from flatmin.core.figures import BLACK, BLUE, ORANGE, new_figure, save


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
