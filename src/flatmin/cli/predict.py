"""`flatmin predict`: what is known before training, and a learning rate that was tried."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flatmin.cli import options
from flatmin.core.errors import SettingError
from flatmin.core.plain import json_text

if TYPE_CHECKING:
    from flatmin.dynamics.advice import Advice
    from flatmin.dynamics.working_rates import RateCurve
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
    width: Annotated[
        str | None, typer.Option(help="Width of hidden layers. Default: the features.")
    ] = None,
    output_norm: Annotated[str, typer.Option(help="Norm of the fixed output vector p.")] = "1",
    depths: Annotated[
        str | None, typer.Option(help=f"Depths to compare, such as {DEFAULT_DEPTHS}.")
    ] = None,
    figure: Annotated[
        str | None,
        typer.Option(help="Draw S_min against depth here; with --measure, the curve."),
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
    scale: Annotated[str, typer.Option(help="Its scale; 1 is the standard one.")] = "1",
    learned_at: Annotated[
        str, typer.Option(help="Learned means this share of the excess risk of w = 0.")
    ] = "0.001",
    effort: Annotated[
        str, typer.Option(help="How much work to spend on the rate; 1 is about a second.")
    ] = "1",
    share: Annotated[str, typer.Option(help="--measure: share of runs that must learn.")] = "0.95",
    runs: Annotated[str, typer.Option(help="--measure: networks.")] = "100",
    steps: Annotated[
        str | None, typer.Option(help="--measure: steps each run may take. Default: 5000 or more.")
    ] = None,
    seed: Annotated[str, typer.Option(help="Seed of the initial weights.")] = "0",
    certificate: Annotated[
        str | None,
        typer.Option(help="Write S_min here with a proof, for `flatmin verify`."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """How flat the minima can be, above which rate nothing settles, and a rate that works."""
    if depth is None and depths is None:
        raise SettingError("--depth is missing: the number of layers, such as --depth 10")
    compared = options.depths(depths or DEFAULT_DEPTHS) if depths or figure else []
    chosen = options.depth(depth) if depth is not None else compared[0]
    norm = options.number("--output-norm", output_norm)
    path = None if figure is None else options.figure_path(figure)
    proof = None if certificate is None else options.file_path("--certificate", certificate)
    wanted = _Wanted(
        curve=bool(measure),
        advice=measure is not False,
        init=init,
        scale=options.number("--scale", scale),
        width=None if width is None else options.whole("--width", width),
        learned_at=options.share("--learned-at", learned_at),
        effort=options.positive("--effort", effort),
        share=options.share("--share", share),
        runs=options.whole("--runs", runs),
        steps=None if steps is None else options.whole("--steps", steps),
        seed=options.whole("--seed", seed, least=0),
        quiet=json,
    )

    prepared = options.preparation(drop, one_hot, missing, intercept, standardise)

    from flatmin.data.regression import read_regression
    from flatmin.theory.prediction import predict as predict_for

    regression = read_regression(file, target, features, prepared)
    # Depths named by the person are measured; those only drawn in a figure are not.
    found = _measured(predict_for(regression, chosen, norm), wanted)
    others = [
        found
        if one == chosen
        else _measured(predict_for(regression, one, norm), wanted if depths else _NOTHING)
        for one in compared
    ]
    if path is not None:
        _draw(path, found, others, wanted.curve)
    if proof is not None:
        from flatmin.theory.certificate import certify

        certify(regression, chosen, norm).write(proof)
    if json:
        _print_json(found, others, wanted)
    else:
        _print_table(found, others, wanted)
        if path is not None:
            print(f"figure: {path}")
        if proof is not None:
            print(f"certificate: {proof}")


@dataclass(frozen=True, kw_only=True)
class _Wanted:
    """What to run besides the theory."""

    curve: bool = False
    advice: bool = False
    init: str = ""
    scale: float = 1.0
    width: int | None = None
    learned_at: float = 1e-3
    effort: float = 1.0
    share: float = 0.95
    runs: int = 100
    steps: int | None = None
    seed: int = 0
    quiet: bool = True


_NOTHING = _Wanted()


@dataclass(frozen=True)
class _Answer:
    """One depth: the theory, the advice and the curve as far as they were asked for."""

    prediction: Prediction
    advice: Advice | None = None
    curve: RateCurve | None = None

    @property
    def title(self) -> str:
        return f"depth {self.prediction.depth}"

    def sentence(self, share: float) -> str:
        parts = [self.prediction.sentence()]
        if self.advice is not None:
            parts.append(self.advice.reason)
        if self.curve is not None:
            parts.append(self.curve.sentence(share))
        return " ".join(parts)

    def as_dict(self, share: float) -> dict[str, Any]:
        result: dict[str, Any] = {"advice": None if self.advice is None else self.advice.as_dict()}
        if self.curve is not None:
            result["working_learning_rate"] = self.curve.largest(share)
            result["rate_curve"] = self.curve.as_dict()
        return result


def _measured(prediction: Prediction, wanted: _Wanted) -> _Answer:
    """The answer for one depth, with progress bars."""
    if not wanted.advice:
        return _Answer(prediction)
    from flatmin.cli.output import progress_bar
    from flatmin.dynamics.advice import WORK, advise
    from flatmin.dynamics.working_rates import MOST_RATES, STEPS, rate_curve
    from flatmin.network.initialisation import architecture_for

    data, depth = prediction.regression, prediction.depth
    network = architecture_for(
        wanted.init, data, depth, width=wanted.width, output_norm=prediction.output_norm,
        seed=wanted.seed,
    )  # fmt: skip
    start = (network, wanted.init, wanted.scale)
    common: Any = {"learned_at": wanted.learned_at, "seed": wanted.seed}
    work = WORK * wanted.effort
    with progress_bar(f"depth {depth}: testing rates", int(work), wanted.quiet) as progress:
        advice = advise(data, *start, work=work, progress=progress, **common)
    if not wanted.curve:
        return _Answer(prediction, advice)
    common |= {"runs": wanted.runs, "steps": wanted.steps or max(STEPS, advice.steps or 0)}
    with progress_bar(f"depth {depth}: measuring", MOST_RATES, wanted.quiet) as progress:
        return _Answer(prediction, advice, rate_curve(data, *start, progress=progress, **common))


def _draw(path: Any, found: _Answer, others: list[_Answer], curve: bool) -> None:
    from flatmin.core.figures import save
    from flatmin.dynamics.figures import rate_figure
    from flatmin.theory.figures import depth_figure

    if not curve:
        save(depth_figure([other.prediction for other in others]), path)
        return
    shown = [one for one in others if one.curve is not None] or [found]
    drawn = {one.title: one.curve for one in shown if one.curve is not None}
    advised = {one.title: one.advice.learning_rate for one in shown if one.advice is not None}
    save(rate_figure(drawn, advised), path)


def _print_json(found: _Answer, others: list[_Answer], wanted: _Wanted) -> None:
    result = found.prediction.as_dict() | {"learned_at": wanted.learned_at}
    result |= found.as_dict(wanted.share)
    if others:
        keep = ("depth", "minimal_sharpness", "small_init_sharpness", "critical_learning_rate")
        result["depths"] = [
            {key: other.prediction.as_dict()[key] for key in keep} | other.as_dict(wanted.share)
            for other in others
        ]
    print(json_text(result))


def _print_table(found: _Answer, others: list[_Answer], wanted: _Wanted) -> None:
    from flatmin.cli.output import learned_note, number, print_lines, print_table

    prediction, advice = found.prediction, found.advice
    data, minimal = prediction.regression, prediction.minimal
    eigenvalues = f"{number(data.smallest_eigenvalue)} to {number(data.largest_eigenvalue)}"
    rows = [
        ("Data", f"{data.n} rows, {data.d} features, rank {data.rank}"),
        ("Eigenvalues of Sigma", f"{eigenvalues}, ratio {number(data.condition_number)}"),
        ("|w*|, norm of the best regressor", number(data.w_star_norm)),
        ("Smallest risk R_min", number(data.risk_min)),
        ("Depth L, output norm |p|", f"{prediction.depth}, {number(prediction.output_norm)}")
        if data.targets == 1
        else ("Depth L, targets", f"{prediction.depth}, {data.targets}"),
        ("", ""),
        ("S_min, lower bound", number(minimal.lower)),
        ("S_min, exact", number(prediction.exact)),
        ("S_min, upper bound", number(minimal.upper)),
    ]
    if prediction.small_init_sharpness is not None:
        rows.append(("Limit from small initialisation", number(prediction.small_init_sharpness)))
    rows.append(("", ""))
    rows.append(("Critical learning rate 2/S_min", number(prediction.critical_rate)))
    if prediction.paper_rate is not None:
        rows.append(("  as the paper approximates it", number(prediction.paper_rate)))
    if advice is not None and advice.learning_rate is not None:
        rows.append(("Tested learning rate", f"{number(advice.learning_rate)}"))
        rows.append(("  initialisation", f"{advice.init}, scale {advice.scale:g}"))
        learned = round((advice.learned_share or 0.0) * advice.runs)
        rows.append(("  learned", f"{learned} of {advice.runs} runs in {advice.steps} steps"))
    print_table(("Before training", ""), rows)
    notes = [*data.preparation, *prediction.notes()]
    if others:
        notes += _print_depths(others)
    if found.curve is not None:
        _print_curve(found.curve)
    if advice is not None:
        notes.append(f"{learned_note(wanted.learned_at)} (--learned-at)")
        if advice.learning_rate is None:
            notes.append("--effort 10 looks longer; --init, --width and --scale change the start")
    print_lines(found.sentence(wanted.share), notes)


def _print_depths(others: list[_Answer]) -> list[str]:
    """A row per depth, the flattest marked; what to say about it."""
    from flatmin.cli.output import number, print_table
    from flatmin.theory.prediction import flattest_of

    flattest = flattest_of([one.prediction for one in others])

    def depth(one: Prediction) -> str:
        return f"{one.depth} *" if one is flattest else str(one.depth)

    def tested(one: _Answer) -> tuple[str, str]:
        if one.advice is None:
            return "", ""
        if one.advice.learning_rate is None:
            return "none", ""
        return number(one.advice.learning_rate), str(one.advice.steps)

    print_table(
        ("Depth", "S_min lower", "exact", "upper", "critical rate", "tested rate", "steps"),
        [
            (
                depth(other.prediction),
                number(other.prediction.minimal.lower),
                number(other.prediction.exact),
                number(other.prediction.minimal.upper),
                number(other.prediction.critical_rate),
                *tested(other),
            )
            for other in others
        ],
    )
    if flattest is None:
        return []
    best = f"the flattest depth for these data is {flattest.flattest_depth}"
    return [f"{best}; * is the flattest of those compared"]


def _print_curve(curve: RateCurve) -> None:
    from flatmin.cli.output import number, print_table

    def percent(share: float) -> str:
        return f"{100 * share:.3g} %"

    print_table(
        ("Learning rate", "learned", "unstable", "too slow", "median steps"),
        [
            (
                number(one.learning_rate),
                percent(one.learned),
                percent(one.unstable),
                percent(one.slow),
                "-" if one.median_steps is None else f"{one.median_steps:.0f}",
            )
            for one in curve.points
        ],
    )
