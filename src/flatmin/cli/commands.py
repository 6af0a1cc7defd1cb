"""How every command presents itself: `-h` like `--help`, and what each option takes.

Values are read as text, so that a wrong one gets flatmin's own line and not the option parser's;
the help would then call every one of them a string. What an option takes depends on its name, which
means the same in every command; one that differs says so itself (`metavar=`).
"""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

HELP = {"help_option_names": ["-h", "--help"]}

_WHOLE = ("depth", "width", "runs", "steps", "seed", "record_every", "threads", "workers")
_NUMBER = ("output_norm", "scale", "share", "learned_at", "effort")
_NAME = ("activation", "init", "preset")
METAVARS = {
    **dict.fromkeys(_WHOLE, "N"),
    **dict.fromkeys(_NUMBER, "NUMBER"),
    **dict.fromkeys(_NAME, "NAME"),
    **dict.fromkeys(("target", "features", "drop", "one_hot", "x", "y", "by"), "COLUMN"),
    **dict.fromkeys(("figure", "results", "certificate"), "FILE"),
    **dict.fromkeys(("out", "figures"), "FOLDER"),
    "depths": "N,N,...",
    "learning_rate": "RATE",
    "missing": "drop|mean",
    "only": "ID",
    "scheduler": "ADDRESS",
}


class Commands(TyperGroup):
    """A group whose commands say what their options take."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, its parameters described."""
        command: Any = super().get_command(ctx, cmd_name)
        for parameter in command.params if command is not None else ():
            if parameter.param_type_name == "argument":
                # Its name says it; the parser would add its type, which is always text.
                parameter.display_type_rich = lambda ctx: None
            elif not parameter.is_flag and parameter.metavar is None:
                parameter.metavar = METAVARS.get(parameter.name)
        return command
