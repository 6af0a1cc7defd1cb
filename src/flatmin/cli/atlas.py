"""`flatmin atlas`: what gradient descent does above the ceiling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatmin.cli import options
from flatmin.core.checks import check_choice
from flatmin.core.errors import SettingError
from flatmin.core.files import make_directory
from flatmin.core.plain import json_text

if TYPE_CHECKING:
    from flatmin.core.arrays import Float
    from flatmin.data.preparation import Preparation
    from flatmin.data.regression import Regression
    from flatmin.dynamics.atlas import Atlas

DEFAULT_RATES = "0.9:3:400"
MOST_RATES = 100_000


def atlas(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A table; without it, the paper's data."),
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    features: options.Features = None,
    drop: options.Drop = None,
    one_hot: options.OneHot = None,
    missing: options.Missing = None,
    intercept: options.Intercept = False,
    standardise: options.Standardise = False,
    depth: Annotated[str | None, typer.Option(help="Number of layers L. Default: 10.")] = None,
    depths: Annotated[str | None, typer.Option(help="Several depths, such as 2,3,5,10.")] = None,
    rates: Annotated[
        str,
        typer.Option(
            metavar="FROM:TO:COUNT",
            help="Rates as multiples c of the ceiling 2/S_min, or a list such as 0.9,1.1,1.3.",
        ),
    ] = DEFAULT_RATES,
    starts: Annotated[
        str, typer.Option(metavar="N", help="Starts near the flattest minimiser.")
    ] = "4",
    steps: Annotated[str, typer.Option(help="Steps of every run.")] = "20000",
    width: Annotated[
        str | None,
        typer.Option(help="Width of hidden layers. Default: the features; 1 has the same orbits."),
    ] = None,
    init: Annotated[
        str, typer.Option(help="Initialisation whose fate at each rate is told.")
    ] = "pytorch",
    scale: Annotated[str, typer.Option(help="Its scale; 1 is the standard one.")] = "1",
    runs: Annotated[str, typer.Option(help="Networks drawn from it; 0 for none.")] = "16",
    seed: Annotated[str, typer.Option(help="Seed of starts and kicks.")] = "0",
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "--out", metavar="FOLDER", help="Write a figure a depth and a table here."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Settled, periodic, chaotic or lost: what gradient descent does above the ceiling."""
    if depth is not None and depths is not None:
        raise SettingError("give either --depth or --depths, not both")
    layers = options.depths(depths) if depths is not None else [options.depth(depth or "10")]
    if layers[0] < 2:
        raise SettingError("a depth of an atlas must be at least 2: one layer diverges, got 1")
    c = _rates(rates)
    count, length = options.whole("--starts", starts), options.whole("--steps", steps)
    fresh, size = options.whole("--runs", runs, least=0), options.number("--scale", scale)
    begin = options.whole("--seed", seed, least=0)
    hidden = None if width is None else options.whole("--width", width)
    from flatmin.network.initialisation import INITIALISATIONS

    check_choice("--init", init, INITIALISATIONS)
    folder = None if output is None else make_directory(Path(output))
    prepared = options.preparation(drop, one_hot, missing, intercept, standardise)
    data = _regression(file, target, features, prepared)

    from flatmin.cli.output import progress_bar
    from flatmin.dynamics.atlas import atlas as follow
    from flatmin.dynamics.atlas import work

    found = []
    for one in layers:
        label, total = f"depth {one}: following orbits", work(c, count, length, fresh)
        with progress_bar(label, total, quiet=json) as progress:
            here = follow(
                data, one, c=c, starts=count, steps=length, seed=begin, width=hidden,
                init=init, scale=size, runs=fresh, progress=progress,
            )  # fmt: skip
        found.append(here)
    written = [] if folder is None else _write(folder, found)
    if json:
        print(json_text({"depths": [one.as_dict() for one in found], "files": written}))
        return
    _print(data, found)
    for path in written:
        print(path)


def _rates(text: str) -> Float:
    """FROM:TO:COUNT or a list of numbers."""
    import numpy as np

    if ":" in text:
        parts = text.split(":")
        if len(parts) != 3:
            raise SettingError(f"--rates must be FROM:TO:COUNT, such as 0.9:3:400, got {text!r}")
        low, high = (options.positive("--rates", part) for part in parts[:2])
        count = options.whole("the COUNT of --rates", parts[2], least=2)
        if not low < high:
            raise SettingError(f"--rates must run from a smaller to a larger one, got {text!r}")
        if count > MOST_RATES:
            raise SettingError(f"the COUNT of --rates must be at most {MOST_RATES}, got {count}")
        return np.linspace(low, high, count)
    values = [part for part in text.split(",") if part.strip()]
    if not values:
        raise SettingError(f"--rates must be FROM:TO:COUNT or a list of numbers, got {text!r}")
    return np.unique([options.positive("each of --rates", part) for part in values])


def _regression(
    file: str | None, target: str | None, features: list[str] | None, prepared: Preparation
) -> Regression:
    from flatmin.data.preparation import NOTHING

    if file is None:
        if target or features or prepared != NOTHING:
            raise SettingError("--target, --features and what prepares a table need a FILE")
        from flatmin.data.sets import paper_samples

        return paper_samples("linear").regression()
    if not target:
        raise SettingError("--target is missing: the column to predict")
    from flatmin.data.regression import read_regression

    return read_regression(file, [target], features, prepared)


def _write(folder: Path, found: list[Atlas]) -> list[Path]:
    """A figure a depth, and one table of all runs."""
    import pandas as pd

    from flatmin.core.figures import save
    from flatmin.core.files import writing
    from flatmin.dynamics.atlas_figure import atlas_figure

    written = []
    for one in found:
        written.append(folder / f"depth-{one.depth}.png")
        save(atlas_figure(one), written[-1])
    table = folder / "atlas.parquet"
    with writing(table) as temporary:
        pd.concat([one.table() for one in found]).to_parquet(temporary, index=False)
    return [*written, table]


def _print(data: Regression, found: list[Atlas]) -> None:
    from flatmin.cli.output import number, print_lines, print_table
    from flatmin.theory.minimal_sharpness import CONVENTION

    def told(threshold: Any) -> str:
        return "none seen" if threshold is None else str(threshold)

    rows = []
    for one in found:
        critical = number(2.0 / one.minimal_sharpness)
        thresholds = (told(one.c_2), told(one.c_4), told(one.c_div))
        rows.append((str(one.depth), critical, *thresholds, _chaos(one)))
    print_table(("Depth", "ceiling 2/S_min", "c_2", "c_4", "c_div", "chaotic"), rows)
    notes = [
        *data.preparation,
        "rates c are multiples of the ceiling; from c_2 on descent oscillates with period 2, from "
        "c_4 on with period 4; c_div is the least rate at which a run diverged",
        "chaotic: the share of runs that were, and the rates between which they lie",
        f"sharpness: {CONVENTION}",
    ]
    print_lines(" ".join(one.sentence() for one in found), notes)
    for one in found:
        if one.basins is not None:
            _print_basins(one)


def _chaos(one: Atlas) -> str:
    from flatmin.dynamics.orbits import CHAOTIC

    chaotic = one.orbits.kind == CHAOTIC
    if not chaotic.any():
        return "none"
    rates = one.c[chaotic]
    return f"{100 * chaotic.mean():.0f} %, {rates.min():.3g} to {rates.max():.3g}"


def _print_basins(one: Atlas) -> None:
    """At a few rates, what became of fresh starts."""
    from flatmin.cli.output import print_table
    from flatmin.dynamics.orbits import DIVERGED

    basins = one.basins
    assert basins is not None
    chosen = range(0, len(basins.c), max(1, len(basins.c) // 9))
    rows = []
    for i in chosen:
        kinds = {name: shares[i] for name, shares in basins.shares.items() if shares[i] > 0.0}
        order = sorted(kinds, key=lambda name: -kinds[name])
        rows.append((f"{basins.c[i]:.3f}", ", ".join(f"{100 * kinds[k]:.0f} % {k}" for k in order)))
        if order == [DIVERGED]:
            break
    head = f"of {basins.runs} starts from {basins.init} (scale {basins.scale:g}), depth {one.depth}"
    print_table(("c", head), rows)
