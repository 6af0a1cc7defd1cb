"""Draws docs/images/ceiling.png: `python docs/pictures.py` from the project's folder."""

from __future__ import annotations

from pathlib import Path

import flatmin
from flatmin.network import residual_output_vector
from flatmin.plots import BLUE, new_figure, save

RUNS, STEPS, DEPTH = 100, 5000, 10


def ceiling(path: Path) -> None:
    """Share of runs that converge against the rate, for two data sets of condition number 10."""
    figure, panels = new_figure(2)
    network = flatmin.Architecture.residual(5, DEPTH, residual_output_vector(5, seed=0))
    start = flatmin.initialise(
        network, "residual", 0.25, seed=0, addresses=[(i,) for i in range(RUNS)]
    )
    titles = {"spread": "w* on all directions", "weak": "w* on weak directions"}
    for panel, (alignment, title) in zip(panels, titles.items(), strict=True):
        data = flatmin.spectrum_samples(
            n=50, d=5, condition_number=10, alignment=alignment, seed=0
        ).regression()
        top = flatmin.predict(data, DEPTH).critical_rate
        shares = [0.05 * i for i in range(1, 25)]
        zero = data.risk_at_zero - data.risk_min
        converged = []
        for share in shares:
            outcome = flatmin.descend(data, start, learning_rate=share * top, steps=STEPS)
            converged.append(float((outcome.excess_risk < 1e-6 * zero).mean()))
        panel.plot([share * top for share in shares], converged, "o-", color=BLUE, ms=3)
        panel.axvline(top, color="black", ls="--", lw=1.2, label="ceiling 2/S_min")
        panel.set_title(title)
        panel.set_xlabel("learning rate")
        panel.set_ylabel("share of runs that converge")
        panel.legend(frameon=False, loc="lower left")
    save(figure, path)


if __name__ == "__main__":
    ceiling(Path(__file__).parent / "images" / "ceiling.png")
