"""`flatmin predict`: what is known before training, and a learning rate that was tried."""

from __future__ import annotations

from typing import Annotated

import typer

from flatmin.cli import options
from flatmin.cli.output import show


def predict(
    table: options.Table,
    depth: Annotated[int | None, typer.Option(help="Number of layers L.")] = None,
    width: Annotated[
        int | None, typer.Option(help="Width of hidden layers. Default: the features.")
    ] = None,
    output_norm: Annotated[float, typer.Option(help="Norm of the fixed output vector p.")] = 1.0,
    depths: Annotated[
        list[int] | None, typer.Option(help="Depths to compare, such as 2,5,10.")
    ] = None,
    figure: Annotated[
        str | None, typer.Option(help="Draw S_min against depth here; with --measure, the curve.")
    ] = None,
    measure: Annotated[
        bool | None,
        typer.Option(
            "--measure/--no-measure",
            help="Also measure the share of runs that learn at every rate; or run nothing at all. "
            "Default: look for one rate and test it.",
        ),
    ] = None,
    init: Annotated[str, typer.Option(help="Initialisation to start from.")] = "pytorch",
    scale: options.Scale = "1",
    learned_at: options.LearnedAt = 0.001,
    effort: Annotated[
        float, typer.Option(help="How much work to spend on the rate; 1 is about a second.")
    ] = 1.0,
    share: Annotated[float, typer.Option(help="--measure: share of runs that must learn.")] = 0.95,
    runs: Annotated[int, typer.Option(help="--measure: networks.")] = 100,
    steps: Annotated[
        int | None, typer.Option(help="--measure: steps each run may take. Default: 5000 or more.")
    ] = None,
    seed: options.Seed = 0,
    certificate: Annotated[
        str | None, typer.Option(help="Write S_min here with a proof, for `flatmin verify`.")
    ] = None,
    json: options.Json = False,
) -> None:
    """How flat the minima can be, above which rate nothing settles, and a rate that works."""
    table.spare("--certificate", certificate)
    path = None if figure is None else options.figure_path("--figure", figure)
    proof = None if certificate is None else options.file_path("--certificate", certificate)

    from flatmin.data.regression import read_regression
    from flatmin.dynamics.forecast import forecast

    found = forecast(
        table.read(read_regression),
        depth,
        depths=depths or (),
        output_norm=output_norm,
        measure="advice" if measure is None else "curve" if measure else "nothing",
        init=init,
        scale=scale,
        width=width,
        learned_at=learned_at,
        effort=effort,
        share=share,
        runs=runs,
        steps=steps,
        seed=seed,
        progress=not json,
    )
    if path is not None:
        from flatmin.core.figures import save

        save(found.plot(), path)
    if proof is not None:
        found.prediction.certificate.write(proof)
    places = {"figure": path, "certificate": proof}
    show(found, json, [f"{name}: {place}" for name, place in places.items() if place is not None])
