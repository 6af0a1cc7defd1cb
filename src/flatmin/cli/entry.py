"""All commands together, and what becomes of their errors.

Heavy modules are imported inside the commands, so that `flatmin --help` answers at once. Errors
meant for the person who typed become one line on standard error and exit code 2; anything else is
a bug and keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, NoReturn

import typer

from flatmin import __version__
from flatmin.cli import surroundings
from flatmin.cli.atlas import atlas
from flatmin.cli.bench import bench
from flatmin.cli.check import check
from flatmin.cli.commands import HELP, Commands, reading
from flatmin.cli.interrupt import interruptible
from flatmin.cli.lab import lab
from flatmin.cli.predict import predict
from flatmin.cli.reproduce import reproduce
from flatmin.cli.study import study_app
from flatmin.cli.train import MethodOptions, train
from flatmin.cli.verify import verify
from flatmin.core.errors import FlatminError

app = typer.Typer(
    name="flatmin",
    cls=Commands,
    context_settings=HELP,
    help="The sharpness of deep linear networks: how flat their minima can be, "
    "and at which learning rates training can settle.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(asked: bool) -> None:
    if asked:
        print(f"flatmin {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for command in (predict, verify, train, lab, atlas, check, bench, reproduce):
    app.command(cls=MethodOptions if command is train else None)(reading(command))
app.add_typer(study_app, name="study")


def run() -> NoReturn:
    """The command, as it was called."""
    surroundings.prepare()
    shortage = surroundings.shortage()
    if shortage is not None:
        sys.exit(_complain(shortage, 2))
    with interruptible() as interrupted:
        code = _run(interrupted)
    code = surroundings.finish(code)
    if code == 130:
        surroundings.leave(code)
    sys.exit(code)


def _run(interrupted: Callable[[], bool]) -> int:
    """The command; its exit code."""
    try:
        code = app(standalone_mode=False)
        if code == 130:  # the option parser's own answer to Ctrl-C
            raise KeyboardInterrupt
        return code if isinstance(code, int) else 0
    except FlatminError as error:
        return _complain(str(error), 2)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("stopped", 130)
    except (BrokenPipeError, SystemExit) as end:
        # The reader of our output has gone (`flatmin ... | head`); nothing is left to say. The
        # option parser makes an exit of it.
        if isinstance(end, SystemExit) and not isinstance(end.__context__, BrokenPipeError):
            raise
        surroundings.drop_output()
        return 0
    except Exception as error:
        if interrupted():  # what became of the interrupt on its way out
            return _complain("stopped", 130)
        reason = surroundings.reason(error)
        if reason is not None:
            return _complain(reason, 2)
        # Wrong usage, as the option parser reports it: one line like every other complaint.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message().strip()
        return _complain(f"{message} (see flatmin --help)", 2) if message else 2


def _complain(message: str, code: int) -> int:
    surroundings.complain(message)
    return code
