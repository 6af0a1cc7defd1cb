"""`flatmin predict`: what is known before any training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatmin.cli import options
from flatmin.errors import SettingError

if TYPE_CHECKING:
    from flatmin.measured_rate import WorkingRate
    from flatmin.theory.prediction import Prediction

DEFAULT_DEPTHS = "2,5,10,20,40"


def predict(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A table: .csv, .tsv, .parquet or .npz.")
    ],
    target: Annotated[
        list[str], typer.Option(help="The column to predict; repeat for several targets.")
    ],
    depth: Annotated[str | None, typer.Option(help="Number of layers L.")] = None,
    features: options.Features = None,
    drop: options.Drop = None,
    one_hot: options.OneHot = None,
    missing: options.Missing = None,
    intercept: options.Intercept = False,
    standardise: options.Standardise = False,
    output_norm: Annotated[str, typer.Option(help="Norm of the fixed output vector p.")] = "1",
    depths: Annotated[
        str | None, typer.Option(help=f"Depths to compare, such as {DEFAULT_DEPTHS}.")
    ] = None,
    figure: Annotated[
        str | None, typer.Option(help="Draw S_min and the critical rate against depth here.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Also measure the largest rate that works.")
    ] = False,
    init: Annotated[str, typer.Option(help="Initialisation to measure from.")] = "gaussian",
    scale: Annotated[str, typer.Option(help="Its scale.")] = "0.35",
    share: Annotated[str, typer.Option(help="Share of runs that must converge.")] = "0.95",
    runs: Annotated[str, typer.Option(help="Networks to measure with.")] = "200",
    steps: Annotated[str, typer.Option(help="Steps each run may take.")] = "5000",
    seed: Annotated[str, typer.Option(help="Seed of the measurement.")] = "0",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How flat the minima can be and the largest learning rate that can work, without training."""
    if depth is None and depths is None:
        raise SettingError("--depth is missing: the number of layers, such as --depth 10")
    compared = options.depths(depths or DEFAULT_DEPTHS) if depths or figure else []
    chosen = options.depth(depth) if depth is not None else compared[0]
    norm = options.number("--output-norm", output_norm)
    path = None if figure is None else options.figure_path(figure)
    wanted = {
        "init": init,
        "scale": options.number("--scale", scale),
        "share": options.number("--share", share),
        "runs": options.whole("--runs", runs),
        "steps": options.whole("--steps", steps),
        "seed": options.whole("--seed", seed, least=0),
    }

    prepared = options.preparation(drop, one_hot, missing, intercept, standardise)

    from flatmin.problem import read_regression
    from flatmin.theory.prediction import predict as predict_for

    regression = read_regression(file, target, features, prepared)
    prediction = predict_for(regression, chosen, norm)
    others = [predict_for(regression, one, norm) for one in compared]
    if path is not None:
        from flatmin.plots import depth_figure, save

        save(depth_figure(others), path)
    working = _measure(prediction, wanted, quiet=json) if measure else None
    if json:
        _print_json(prediction, others, working)
    else:
        _print_table(prediction, others, working)
        if path is not None:
            print(f"figure: {path}")


def _measure(prediction: Prediction, wanted: dict[str, Any], quiet: bool) -> WorkingRate:
    """The working rate from an initialisation, with a progress bar."""
    from flatmin.cli.output import progress_bar
    from flatmin.measured_rate import network_steps, working_rate
    from flatmin.network import Architecture, residual_output_vector

    data, depth, norm = prediction.regression, prediction.depth, prediction.output_norm
    if data.targets > 1:
        raise SettingError("--measure is for one target")
    if wanted["init"] == "residual":
        p = norm * residual_output_vector(data.d, wanted["seed"])
        network = Architecture.residual(data.d, depth, p)
    else:
        network = Architecture(data.d, (*[data.d] * (depth - 1), 1), (norm,))
    total = network_steps(wanted["runs"], wanted["steps"])
    with progress_bar("measuring", total, quiet) as progress:
        return working_rate(data, network, progress=progress, **wanted)


def _advice(prediction: Prediction, working: WorkingRate | None) -> str:
    if working is None:
        return prediction.advice()
    ceiling = f"Nothing above {prediction.critical_rate:.4g} can converge"
    if working.value == 0.0:
        return (
            f"{ceiling}; from this initialisation no rate worked in "
            f"{100 * working.wanted_share:g} % of runs within {working.steps} steps."
        )
    return (
        f"{ceiling}; from this initialisation {working.value:.4g} works in "
        f"{100 * working.wanted_share:g} % of runs."
    )


def _print_json(
    prediction: Prediction, others: list[Prediction], working: WorkingRate | None
) -> None:
    from json import dumps

    result = prediction.as_dict() | {"advice": _advice(prediction, working)}
    if working is not None:
        result["working_learning_rate"] = working.as_dict()
    if others:
        keep = ("depth", "minimal_sharpness", "small_init_sharpness", "critical_learning_rate")
        result["depths"] = [{key: other.as_dict()[key] for key in keep} for other in others]
    print(dumps(result, indent=2, allow_nan=False))


def _print_table(
    prediction: Prediction, others: list[Prediction], working: WorkingRate | None
) -> None:
    from flatmin.cli.output import number, print_lines, print_table

    data, minimal = prediction.regression, prediction.minimal
    eigenvalues = f"{number(data.smallest_eigenvalue)} to {number(data.largest_eigenvalue)}"
    rows = [
        ("Data", f"{data.n} rows, {data.d} features, rank {data.rank}"),
        ("Eigenvalues of Sigma", f"{eigenvalues}, ratio {number(data.condition_number)}"),
        ("|w*|, norm of the best regressor", number(data.w_star_norm)),
        ("Smallest risk R_min", number(data.risk_min)),
        ("Depth L, output norm |p|", f"{prediction.depth}, {number(prediction.output_norm)}"),
        ("", ""),
        ("S_min, lower bound", number(minimal.lower)),
        ("S_min, exact", number(prediction.exact) if prediction.exact else "between the bounds"),
        ("S_min, upper bound", number(minimal.upper)),
    ]
    if prediction.small_init_sharpness is not None:
        rows.append(("Limit from small initialisation", number(prediction.small_init_sharpness)))
    rows.append(("", ""))
    rows.append(("Critical learning rate 2/S_min", number(prediction.critical_rate)))
    if prediction.paper_rate is not None:
        rows.append(("  as the paper approximates it", number(prediction.paper_rate)))
    if working is not None:
        interval = f"{number(working.low)} to {number(working.high)}"
        seen = f"{100 * working.share:.3g} % of {working.runs} runs in {working.steps} steps"
        rows.append(("Measured working rate", f"{number(working.value)} ({interval})"))
        rows.append(("  at which converged", seen))
    print_table(("Before training", ""), rows)
    if others:
        print_table(
            ("Depth", "S_min lower", "exact", "upper", "critical rate"),
            [
                (
                    str(other.depth),
                    number(other.minimal.lower),
                    number(other.exact) if other.exact else "-",
                    number(other.minimal.upper),
                    number(other.critical_rate),
                )
                for other in others
            ],
        )
    print_lines(_advice(prediction, working), [*data.preparation, *prediction.notes()])
