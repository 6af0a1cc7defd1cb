"""`flatmin train`: one run, followed by what it did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatmin.cli import options
from flatmin.core.errors import SettingError
from flatmin.core.plain import json_text

if TYPE_CHECKING:
    from flatmin.data.preparation import Preparation
    from flatmin.dynamics.training import Training


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
    depth: Annotated[str, typer.Option(help="Number of layers L.")] = "10",
    width: Annotated[str | None, typer.Option(help="Width of hidden layers.")] = None,
    activation: Annotated[str, typer.Option(help="linear, gelu-tanh, gelu-erf, tanh, ...")] = (
        "linear"
    ),
    init: Annotated[
        str,
        typer.Option(
            help="pytorch, xavier-normal, xavier-uniform, kaiming-normal, kaiming-uniform, lecun, "
            "orthogonal, gaussian, residual, zero-layer, balanced, flattest or minimiser."
        ),
    ] = "pytorch",
    scale: Annotated[
        str, typer.Option(help="Scale of the initialisation; 1 is the standard one.")
    ] = "1",
    learning_rate: Annotated[
        str | None,
        typer.Option(
            help="A number, or critical, or 0.5critical. Default: look for one and test it."
        ),
    ] = None,
    momentum: Annotated[
        str | None, typer.Option(help="Heavy ball with this momentum, from 0 to below 1.")
    ] = None,
    nesterov: Annotated[
        bool, typer.Option("--nesterov", help="With --momentum: Nesterov's method.")
    ] = False,
    flow: Annotated[bool, typer.Option("--flow", help="Gradient flow instead of descent.")] = False,
    steps: Annotated[str | None, typer.Option(help="Largest number of steps.")] = None,
    seed: Annotated[str, typer.Option(help="Seed of the initial weights.")] = "0",
    learned_at: Annotated[
        str, typer.Option(help="Learned means this share of the excess risk of w = 0.")
    ] = "0.001",
    record_every: Annotated[str | None, typer.Option(help="Steps between records.")] = None,
    out: Annotated[str | None, typer.Option(help="Write trace, weights and figure here.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train one network by gradient descent, with momentum or without, or by gradient flow."""
    if flow and learning_rate is not None:
        raise SettingError("give either --learning-rate or --flow, not both")
    if momentum is not None and learning_rate is None:
        raise SettingError("--momentum needs --learning-rate: rates are tested without momentum")
    if nesterov and momentum is None:
        raise SettingError("--nesterov needs --momentum")
    layers = options.depth(depth)
    hidden = None if width is None else options.whole("--width", width)
    size = options.number("--scale", scale)
    limit = None if steps is None else options.whole("--steps", steps)
    success = options.share("--learned-at", learned_at)
    every = None if record_every is None else options.whole("--record-every", record_every)
    begin = options.whole("--seed", seed, least=0)

    name, beta = "flow" if flow else "descent", None
    if momentum is not None:
        from flatmin.dynamics.momentum import check_momentum

        name = "nesterov" if nesterov else "heavy-ball"
        beta = check_momentum("--momentum", momentum)

    prepared = options.preparation(drop, one_hot, missing, intercept, standardise)
    problem = _problem(file, target, features, prepared)
    from flatmin.network.initialisation import architecture_for

    vector = None
    if file is None:
        from flatmin.data.sets import paper_output_vector

        vector = paper_output_vector()
    network = architecture_for(
        init, problem, layers, width=hidden, activation=activation, p=vector, seed=begin
    )
    rate = None
    if learning_rate is not None:
        rate = options.learning_rate(learning_rate, _critical_rate(problem, network, name, beta))
    elif not flow:
        rate, tested = _tested_rate(problem, network, init, size, success, begin, quiet=json)
        limit = limit or tested
    limit = limit or (100_000 if flow else 10_000)

    from flatmin.cli.output import progress_bar
    from flatmin.dynamics.methods import method_of
    from flatmin.dynamics.training import train as run

    with progress_bar("training", limit, quiet=json) as progress:
        report = run(
            problem,
            network,
            init=init,
            scale=size,
            seed=begin,
            method=method_of(name, learning_rate=rate, momentum=beta),
            steps=limit,
            learned_at=success,
            record_every=every,
            progress=progress,
        )
    written = report.save(Path(out)) if out is not None else []
    if json:
        print(json_text(report.as_dict()))
    else:
        _print_table(report)
        for path in written:
            print(path)


def _problem(
    file: str | None,
    target: list[str] | None,
    features: list[str] | None,
    prepared: Preparation,
) -> Any:
    from flatmin.data.preparation import NOTHING

    if file is None:
        if target or features or prepared != NOTHING:
            raise SettingError("--target, --features and what prepares a table need a FILE")
        from flatmin.data.sets import paper_samples

        return paper_samples("linear")
    if not target:
        raise SettingError("--target is missing: the column to predict")
    from flatmin.data.samples import read_samples

    return read_samples(file, target, features, prepared)


def _tested_rate(
    problem: Any, network: Any, init: str, scale: float, learned_at: float, seed: int, quiet: bool
) -> tuple[float, int | None]:
    """The advised rate and its steps, or a SettingError that says why there is none."""
    from flatmin.cli.output import progress_bar
    from flatmin.dynamics.advice import WORK, advise

    with progress_bar("testing rates", int(WORK), quiet) as progress:
        found = advise(
            problem, network, init, scale, learned_at=learned_at, seed=seed, progress=progress
        )
    if found.learning_rate is None:
        raise SettingError(f"{found.reason} Give --learning-rate, or --flow")
    if not quiet:
        print(found.reason)
    return found.learning_rate, found.steps


def _critical_rate(problem: Any, network: Any, name: str, momentum: float | None) -> float:
    """The rate at which the method's edge is S_min."""
    from flatmin.dynamics.methods import method_of
    from flatmin.theory.prediction import predict

    reach = method_of(name, learning_rate=1.0, momentum=momentum).reach
    found = predict(problem.regression(), network.depth, network.output_norm)
    return 0.5 * reach * found.critical_rate


def _print_table(report: Training) -> None:
    from flatmin.cli.output import learned_note, number, print_lines, print_table
    from flatmin.theory.minimal_sharpness import CONVENTION

    outcome, final, first = report.outcome, report.final_sharpness, report.initial_sharpness
    rows = [
        ("Learned", "yes" if report.learned else "no"),
        ("How it ended", report.state),
        ("Steps", str(int(outcome.steps[0]))),
        ("Final risk above R_min", number(outcome.excess_risk[0])),
        ("Distance |w - w*|²", number(outcome.distance[0])),
        ("Gradient norm", number(outcome.gradient[0])),
        ("Sharpness", _with_error(final)),
        ("  at initialisation", _with_error(first)),
    ]
    if report.minimal_sharpness is not None:
        rows.append(("  S_min, exact", number(report.minimal_sharpness)))
    if report.edge is not None:
        rows.append((f"  {report.method.edge_label}", number(report.edge)))
    if "time" in outcome.extras:
        rows.append(("Time", number(outcome.extras["time"][0])))
        rows.append(("Drift of the invariants", number(outcome.extras["drift"][0])))
    print_table(("After training", ""), rows)
    data = report.regression
    notes = [
        *data.preparation,
        f"sharpness: {CONVENTION}",
        learned_note(report.learned_at),
        *data.notes(),
    ]
    if not report.architecture.linear:
        notes.append("S_min is that of linear networks of the same depth")
    print_lines(report.interpretation(), notes)


def _with_error(record: Any) -> str:
    from math import isfinite

    from flatmin.cli.output import number

    if not isfinite(record.value):
        return "none: the weights are too large"
    certain = "" if record.converged else ", not certain to be the largest"
    return f"{number(record.value)} +- {record.residual:.1e}{certain}"
