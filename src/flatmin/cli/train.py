"""`flatmin train`: one run, followed by what it did."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperCommand

from flatmin.cli import options
from flatmin.cli.commands import option
from flatmin.cli.output import show


class MethodOptions(TyperCommand):
    """A command with an option for each method and for what it has of its own.

    They are looked up when the command is called, so that `flatmin --help` answers at once.
    """

    def get_params(self, ctx: Any) -> Any:
        """All parameters; those of methods follow the learning rate."""
        names = [one.name for one in self.params]
        at = names.index("learning_rate") + 1
        self.params[at:at] = [one for one in _of_methods() if one.name not in names]
        return super().get_params(ctx)

    def invoke(self, ctx: Any) -> Any:
        """The command; what was given for methods is `ctx.obj`."""
        ctx.obj = {one.name: ctx.params.pop(one.name) for one in _of_methods()}
        return super().invoke(ctx)


def _of_methods() -> list[Any]:
    from flatmin.dynamics.methods import METHODS, OWN

    taken: dict[str, Any] = {
        name: (Annotated[str | None, typer.Option(help=own.help, metavar="NUMBER")], None)
        for name, own in OWN.items()
        if own.help
    }
    for flag, text in (kind.flag for kind in METHODS.values() if kind.flag[0]):
        taken[flag] = (Annotated[bool, typer.Option(option(flag), help=text)], False)

    def asking() -> None: ...

    asking.__annotations__ = {name: hint for name, (hint, _) in taken.items()}
    asking.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, annotation=hint, default=default)
            for name, (hint, default) in taken.items()
        ]
    )
    alone = typer.Typer(add_completion=False)
    alone.command()(asking)
    return typer.main.get_command(alone).params


def train(
    ctx: typer.Context,
    table: options.Table = options.NO_TABLE,
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
    steps: Annotated[int | None, typer.Option(help="Largest number of steps.")] = None,
    seed: options.Seed = 0,
    learned_at: options.LearnedAt = 0.001,
    record_every: Annotated[int | None, typer.Option(help="Steps between two entries.")] = None,
    out: Annotated[str | None, typer.Option(help="Write trace, weights and figure here.")] = None,
    json: options.Json = False,
) -> None:
    """Train one network, on a table or the paper's data, by gradient descent or another method."""
    from flatmin.data.samples import read_samples
    from flatmin.dynamics.settings import train_network
    from flatmin.dynamics.training import FILES

    table.spare("--out", out, FILES.values())
    report = train_network(
        table.read(read_samples),
        depth,
        width=width,
        activation=activation,
        biases=biases,
        init=init,
        scale=scale,
        learning_rate=learning_rate,
        steps=steps,
        seed=seed,
        learned_at=learned_at,
        record_every=record_every,
        progress=not json,
        **ctx.obj,
    )
    written = report.save(out) if out is not None else []
    show(report, json, written)
