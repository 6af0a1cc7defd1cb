"""How far the central flow is from gradient descent: `python docs/central.py` from the project.

A hundred runs of gradient descent at the edge of stability, on the paper's data; prints the table
of docs/theory/central-flow.md and draws docs/images/central-flow.png. Takes some minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

import flatmin
from flatmin.core.figures import BLACK, BLUE, GREEN, ORANGE, RED, new_figure, save
from flatmin.curvature.linear import LinearHessian
from flatmin.data.sets import paper_samples
from flatmin.dynamics.central_flow import central_flow
from flatmin.dynamics.recording import Recording

RATE, SCALE, DEPTH, RUNS, SEED = 0.07, 0.5, 10, 100, 1
STEPS, EVERY = 300, 10
# Steps until a run must swing quietly, and how many networks are drawn to find a hundred such runs.
LATEST, DRAWN = 120, 700
EDGE = 2.0 / RATE
DATA = paper_samples("linear").regression()
NETWORK = flatmin.Architecture.mlp(5, DEPTH)


@dataclass(frozen=True, eq=False)
class Descents:
    """Iterates `[step, run, P]`, their midpoints, and of these sharpness, the length of the swing
    and the share of it along the top eigenvector."""

    path: np.ndarray
    middle: np.ndarray
    sharpness: np.ndarray
    swing: np.ndarray
    along: np.ndarray


def at(flat: np.ndarray) -> LinearHessian:
    return LinearHessian(DATA, NETWORK, flat)


def excess(flat: np.ndarray) -> np.ndarray:
    error = (at(flat).w - DATA.w_star) @ DATA.sigma_root
    return np.sum(error**2, axis=1)


def top(flat: np.ndarray) -> flatmin.Sharpness:
    networks = flatmin.Ensemble.from_flat(NETWORK, flat)
    return flatmin.sharpness(DATA, networks, tolerance=1e-6, certify=False)


def sharpness(flat: np.ndarray) -> np.ndarray:
    return top(flat).value


def descents() -> Descents:
    """The runs that reach the edge and do not diverge."""
    flat = flatmin.initialise(NETWORK, "gaussian", SCALE, SEED, networks=DRAWN).flat()
    path = [flat]
    with np.errstate(all="ignore"):
        for _ in range(LATEST + STEPS + 2):
            path.append(path[-1] - RATE * at(path[-1]).gradient())
        bounded = np.array([np.abs(flat).max(axis=1) < 10.0 for flat in path]).all(axis=0)
    every = np.array(path)[:, bounded]
    middle = (every[:-2] + 2.0 * every[1:-1] + every[2:]) / 4.0
    turn = (every[2:] - 2.0 * every[1:-1] + every[:-2]) / 4.0
    swing = np.linalg.norm(turn, axis=2)
    found = [top(flat) for flat in middle[: LATEST + 6]]
    sharp = np.array([one.value for one in found])
    along = np.array(
        [np.abs(np.sum(one.vector * x, axis=1)) for one, x in zip(found, turn, strict=False)]
    )
    along /= swing[: len(along)]
    reach = (sharp[:LATEST] >= EDGE).any(axis=0)
    print(f"{DRAWN} drawn, {bounded.sum()} bounded, {reach.sum()} of them reach the edge")
    chosen = np.flatnonzero(reach)[:RUNS]
    return Descents(*(values[:, chosen] for values in (every, middle, sharp, swing, along)))


def start(runs: Descents, run: int, reading: str) -> int:
    """The midpoint from which a run is predicted, not before S first reached the edge.

    reached   S is at least 2/eta and the oscillation has grown: a swing of at least 0.01, nine
              tenths of it along the top eigenvector
    full      the same without S: the swing, at least 0.01 and along it, no longer grows
    quiet     besides, six midpoints in a row have an S within 15 % of 2/eta: no catapult under way
    any       the first maximum of the swing, in whatever direction
    """
    s, x, along = runs.sharpness[:, run], runs.swing[:, run], runs.along[:, run]
    for t in range(int(np.argmax(s >= EDGE)), LATEST - 1):
        swings, full = x[t] >= 0.01 and along[t] >= 0.9, x[t + 1] <= x[t]
        if {
            "reached": swings and s[t] >= EDGE,
            "full": swings and full,
            "quiet": x[t] >= 0.01 and full and np.abs(s[t : t + 6] / EDGE - 1.0).max() <= 0.15,
            "any": full,
        }[reading]:
            return t
    return LATEST - 1


def predicted(begin: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights every so many steps, and the mean excess risk at each step."""
    path, risk = [begin], []
    for _ in range(STEPS // EVERY):
        outcome = central_flow(
            DATA,
            flatmin.Ensemble.from_flat(NETWORK, path[-1]),
            RATE,
            EVERY,
            order=order,
            tolerance=1e-12,
            recording=Recording(1, ("excess_risk",)),
        )
        path.append(outcome.ensemble.flat())
        assert outcome.recorded is not None
        risk.append(outcome.recorded.values["mean_excess_risk"][:EVERY])
    return np.array(path), np.concatenate(risk)


def flowed(begin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gradient flow, by the classical Runge-Kutta method with four steps to a step of descent."""
    path, risk, h, flat = [begin], [], RATE / 4.0, begin
    for step in range(STEPS):
        risk.append(excess(flat))
        for _ in range(4):
            k1 = at(flat).gradient()
            k2 = at(flat - h / 2 * k1).gradient()
            k3 = at(flat - h / 2 * k2).gradient()
            flat = flat - h / 6 * (k1 + 2 * k2 + 2 * k3 + at(flat - h * k3).gradient())
        if (step + 1) % EVERY == 0:
            path.append(flat)
    return np.array(path), np.array(risk)


def compare(runs: Descents, reading: str) -> None:
    """Each prediction against descent from the same midpoints: prints rows of the table."""
    count = runs.middle.shape[1]
    begins = np.array([start(runs, i, reading) for i in range(count)])
    kept = np.flatnonzero(begins < LATEST - 1)
    print(f"\n{reading}: {len(kept)} runs, from step {np.median(begins):g}")
    follow = begins[kept] + np.arange(0, STEPS + 1, EVERY)[:, None]
    truth = runs.middle[follow, kept]
    true_risk = np.array([excess(runs.path[begins[kept] + 1 + t, kept]) for t in range(STEPS)]).sum(
        axis=0
    )
    travelled = np.linalg.norm(truth[-1] - truth[0], axis=1)
    for name, (path, risk) in {
        "gradient flow": flowed(truth[0]),
        "central flow, order 1": predicted(truth[0], 1),
        "central flow, order 2": predicted(truth[0], 2),
    }.items():
        error = np.linalg.norm(path - truth, axis=2) / travelled
        ratio = risk.sum(axis=0) / true_risk
        cells = [
            *(np.median(e) for e in (error[-1], error.mean(axis=0), error.max(axis=0))),
            np.quantile(error.max(axis=0), 0.9),
            np.median(ratio),
            risk.sum() / true_risk.sum(),
        ]
        within = np.mean(np.abs(ratio - 1.0) <= 0.15)
        print(f"| {name} | " + " | ".join(f"{c:.3f}" for c in cells) + f" | {within:.2f} |")
        most = runs.sharpness[:, kept].max(axis=0) / EDGE
        for low, high in ((0.0, 1.25), (1.25, 1.75), (1.75, np.inf)):
            some = (most >= low) & (most < high)
            found = np.median(error.mean(axis=0)[some]), np.median(error.max(axis=0)[some])
            print(f"    largest S eta/2 from {low:g} to {high:g}: {some.sum()} runs, {found}")


def draw(runs: Descents, run: int, path: Path) -> None:
    """One run from before the edge: distance and sharpness of descent and its predictions."""
    begin = start(runs, run, "quiet")
    figure, (left, right) = new_figure(2, width=10.0, height=4.2)
    iterates, origin = runs.path[: begin + STEPS + 1, run], runs.middle[begin, run]
    along, later = np.arange(len(iterates)), begin + 1 + np.arange(0, STEPS + 1, EVERY)
    predictions = (
        ("gradient flow", flowed(origin[None])[0], ORANGE, "-"),
        ("central flow, order 1", predicted(origin[None], 1)[0], GREEN, "-."),
        ("central flow, order 2", predicted(origin[None], 2)[0], BLUE, "--"),
    )
    for panel, of in ((left, lambda w: np.linalg.norm(w - origin, axis=1)), (right, sharpness)):
        panel.plot(along, of(iterates), color="0.8", lw=0.6, label="gradient descent")
        middle = of(runs.middle[: begin + STEPS, run])
        panel.plot(along[1:], middle, color=BLACK, lw=1.2, label="its midpoints")
        for name, found, colour, style in predictions:
            panel.plot(later, of(found[:, 0]), color=colour, ls=style, lw=1.6, label=name)
        panel.set(xlabel="step of gradient descent", xlim=(0, begin + STEPS))
        panel.axvline(begin + 1, color="0.6", lw=0.8, ls=":")
    left.set(ylabel="distance from where the prediction starts", ylim=(0, None))
    right.axhline(EDGE, color=RED, ls="--", lw=1, label="2/eta")
    right.set(ylabel="sharpness", ylim=(20, 40))
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, ncols=6, loc="outside lower center")
    save(figure, path)


if __name__ == "__main__":
    found = descents()
    for reading in ("reached", "full", "quiet", "any"):
        compare(found, reading)
    draw(found, 0, Path(__file__).parent / "images" / "central-flow.png")
