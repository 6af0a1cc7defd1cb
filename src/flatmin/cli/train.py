"""`flatmin train`: one run, followed by what it did."""

from __future__ import annotations

from typing import Annotated

import typer

from flatmin.cli import options
from flatmin.cli.output import show


def train(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A table; without it, the paper's data."),
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="The column to predict; repeat for several outputs.")
    ] = None,
    features: options.Features = None,
    drop: options.Drop = None,
    one_hot: options.OneHot = None,
    missing: options.Missing = None,
    intercept: options.Intercept = False,
    standardise: options.Standardise = False,
    depth: Annotated[int, typer.Option(help="Number of layers L.")] = 10,
    width: Annotated[int | None, typer.Option(help="Width of hidden layers.")] = None,
    activation: Annotated[str, typer.Option(help="linear, gelu-tanh, gelu-erf, tanh, ...")] = (
        "linear"
    ),
    biases: Annotated[
        bool, typer.Option("--biases", help="A bias beside every layer, from 0.")
    ] = False,
    init: Annotated[
        str,
        typer.Option(
            help="pytorch, xavier-normal, xavier-uniform, kaiming-normal, kaiming-uniform, lecun, "
            "orthogonal, gaussian, residual, zero-layer, balanced, flattest or minimiser."
        ),
    ] = "pytorch",
    scale: Annotated[
        str,
        typer.Option(
            help="Scale of the initialisation; 1 is the standard one. 0.5natural is half the size "
            "of the layers that the data ask for, in any units."
        ),
    ] = "1",
    learning_rate: Annotated[
        str | None,
        typer.Option(
            help="A number, or critical, or 0.5critical. Default: look for one and test it."
        ),
    ] = None,
    momentum: Annotated[
        float | None, typer.Option(help="Heavy ball with this momentum, from 0 to below 1.")
    ] = None,
    nesterov: Annotated[
        bool, typer.Option("--nesterov", help="With --momentum: Nesterov's method.")
    ] = False,
    flow: Annotated[bool, typer.Option("--flow", help="Gradient flow instead of descent.")] = False,
    central: Annotated[
        bool, typer.Option("--central", help="Central flow: the mean path of descent at its edge.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Largest number of steps.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the initial weights.")] = 0,
    learned_at: Annotated[
        float, typer.Option(help="Learned means this share of the excess risk of w = 0.")
    ] = 0.001,
    record_every: Annotated[int | None, typer.Option(help="Steps between records.")] = None,
    out: Annotated[str | None, typer.Option(help="Write trace, weights and figure here.")] = None,
    json: options.Json = False,
) -> None:
    """Train one network by gradient descent, with momentum or without, or by gradient flow."""
    from flatmin.data.samples import read_samples
    from flatmin.dynamics.settings import train_network

    prepared = options.preparation(drop, one_hot, missing, intercept, standardise)
    report = train_network(
        options.problem(read_samples, file, target, features, prepared),
        depth,
        width=width,
        activation=activation,
        biases=biases,
        init=init,
        scale=scale,
        learning_rate=learning_rate,
        momentum=momentum,
        nesterov=nesterov,
        flow=flow,
        central=central,
        steps=steps,
        seed=seed,
        learned_at=learned_at,
        record_every=record_every,
        progress=not json,
    )
    written = report.save(out) if out is not None else []
    show(report, json)
    for path in written if not json else ():
        print(path)
