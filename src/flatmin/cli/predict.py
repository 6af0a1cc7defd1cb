"""`flatmin predict`: what is known before any training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from flatmin.cli import options
from flatmin.errors import SettingError

if TYPE_CHECKING:
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
    features: Annotated[
        list[str] | None, typer.Option(help="A feature column; repeat. Default: all others.")
    ] = None,
    output_norm: Annotated[str, typer.Option(help="Norm of the fixed output vector p.")] = "1",
    depths: Annotated[
        str | None, typer.Option(help=f"Depths to compare, such as {DEFAULT_DEPTHS}.")
    ] = None,
    figure: Annotated[
        str | None, typer.Option(help="Draw S_min and the critical rate against depth here.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How flat the minima can be and the largest learning rate that can work, without training."""
    if depth is None and depths is None:
        raise SettingError("--depth is missing: the number of layers, such as --depth 10")
    compared = options.depths(depths or DEFAULT_DEPTHS) if depths or figure else []
    chosen = options.depth(depth) if depth is not None else compared[0]
    norm = options.number("--output-norm", output_norm)
    path = None if figure is None else options.figure_path(figure)

    from flatmin.problem import read_regression
    from flatmin.theory.prediction import predict as predict_for

    regression = read_regression(file, target if len(target) > 1 else target[0], features)
    prediction = predict_for(regression, chosen, norm)
    others = [predict_for(regression, one, norm) for one in compared]
    if path is not None:
        from flatmin.plots import depth_figure, save

        save(depth_figure(others), path)
    if json:
        _print_json(prediction, others)
    else:
        _print_table(prediction, others)
        if path is not None:
            print(f"figure: {path}")


def _print_json(prediction: Prediction, others: list[Prediction]) -> None:
    from json import dumps

    result = prediction.as_dict()
    if others:
        keep = ("depth", "minimal_sharpness", "small_init_sharpness", "critical_learning_rate")
        result["depths"] = [{key: other.as_dict()[key] for key in keep} for other in others]
    print(dumps(result, indent=2, allow_nan=False))


def _print_table(prediction: Prediction, others: list[Prediction]) -> None:
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
    print_lines(prediction.advice(), prediction.notes())
