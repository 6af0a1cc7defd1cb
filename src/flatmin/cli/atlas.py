"""`flatmin atlas`: what gradient descent does above the ceiling."""

from __future__ import annotations

from typing import Annotated

import typer

from flatmin.cli import options
from flatmin.cli.output import show


def atlas(
    table: options.Table = options.NO_TABLE,
    depth: Annotated[int | None, typer.Option(help="Number of layers L. Default: 10.")] = None,
    depths: Annotated[
        list[int] | None, typer.Option(help="Several depths, such as 2,3,5,10.")
    ] = None,
    rates: Annotated[
        list[float] | None,
        typer.Option(
            help="Rates as multiples c of the ceiling 2/S_min, or a list such as 0.9,1.1,1.3. "
            "Default: 0.9:3:400."
        ),
    ] = None,
    starts: Annotated[int, typer.Option(help="Starts near the flattest minimiser.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of every run.")] = 20000,
    width: Annotated[
        int | None,
        typer.Option(help="Width of hidden layers. Default: the features; 1 has the same orbits."),
    ] = None,
    basins: Annotated[
        bool,
        typer.Option(
            "--basins/--no-basins", help="Also tell the fate of networks drawn at random; or not."
        ),
    ] = True,
    init: Annotated[str, typer.Option(help="Their initialisation.")] = "pytorch",
    scale: options.Scale = "1",
    runs: Annotated[int, typer.Option(help="How many are drawn.")] = 16,
    seed: Annotated[int, typer.Option(help="Seed of starts and kicks.")] = 0,
    out: Annotated[
        str | None, typer.Option(help="Write a figure a depth and a table here.")
    ] = None,
    json: options.Json = False,
) -> None:
    """What gradient descent does above the ceiling, on a table or the paper's data: it may settle,
    go round with a period, be chaotic or diverge."""
    from flatmin.data.regression import read_regression
    from flatmin.dynamics.atlas import atlases
    from flatmin.dynamics.atlas_record import TABLE

    table.spare("--out", out, [TABLE])
    found = atlases(
        table.read(read_regression),
        depth,
        depths=depths or (),
        c=rates,
        starts=starts,
        steps=steps,
        width=width,
        init=init,
        scale=scale,
        runs=runs if basins else 0,
        seed=seed,
        progress=not json,
    )
    written = found.save(out) if out is not None else []
    show(found, json, written)
