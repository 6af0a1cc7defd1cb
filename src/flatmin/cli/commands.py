"""How every command presents itself: `-h` like `--help`, and what each option takes.

Values are read here, so that a wrong one gets flatmin's own line and not the option parser's. What
an option takes depends on its name, which means the same in every command; one that differs says so
itself (`metavar=`). The library names settings (`learning_rate`); an error that begins with one is
told with the option (`--learning-rate`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

from typer.core import TyperGroup

from flatmin.core.checks import LARGEST_COUNT, MAX_DEPTH, number_in, whole_in
from flatmin.core.errors import FlatminError, SettingError

MOST_RATES = 100_000
HELP = {"help_option_names": ["-h", "--help"]}


class Takes(NamedTuple):
    """What an option takes: its word in the help, and how it is read; None is text."""

    word: str
    read: Callable[[str, str], Any] | None = None


def option(setting: str) -> str:
    """The option for a setting."""
    return f"--{setting.replace('_', '-')}"


def number(name: str, text: str) -> float:
    """A number."""
    value = number_in(text)
    if value is None:
        raise SettingError(f"{name} must be a number, got {text!r}")
    return value


def whole(name: str, text: str, least: int = 1, largest: int = LARGEST_COUNT) -> int:
    """A whole number; 1e6 is understood."""
    number(name, text)
    value = whole_in(text)
    if value is None or value < least:
        raise SettingError(f"{name} must be a whole number of at least {least}, got {text!r}")
    if value > largest:
        raise SettingError(f"{name} must be at most {largest}, got {text!r}")
    return value


def seed(name: str, text: str) -> int:
    """A whole number from 0."""
    return whole(name, text, least=0, largest=2**128)


def depth(name: str, text: str) -> int:
    """A number of layers."""
    return whole(name, text, largest=MAX_DEPTH)


def depths(name: str, text: str) -> list[int]:
    """Depths separated by commas, sorted, each once."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise SettingError(f"{name} must list depths such as 2,5,10, got {text!r}")
    return sorted({depth(f"each of {name}", part) for part in parts})


def rates(name: str, text: str) -> list[float]:
    """From a number to a larger one, so many in all; or numbers separated by commas."""
    span, several = text.split(":"), [part for part in text.split(",") if part.strip()]
    if not several or len(span) not in (1, 3):
        raise SettingError(f"{name} must be FROM:TO:COUNT or a list of numbers, got {text!r}")
    if len(span) == 1:
        return [number(f"each of {name}", part) for part in several]
    low, high = (number(name, part) for part in span[:2])
    count = whole(f"the COUNT of {name}", span[2], 2, MOST_RATES)
    if not low < high:
        raise SettingError(f"{name} must run from a smaller to a larger one, got {text!r}")
    return [low + i * (high - low) / (count - 1) for i in range(count)]


_FILE, _COLUMN, _NAME = Takes("FILE"), Takes("COLUMN"), Takes("NAME")
_WHOLE, _NUMBER, _FOLDER = Takes("N", whole), Takes("NUMBER", number), Takes("FOLDER")
TAKES = {
    **dict.fromkeys(("width", "runs", "starts", "steps", "record_every"), _WHOLE),
    **dict.fromkeys(("threads", "workers"), _WHOLE),
    **dict.fromkeys(("output_norm", "share", "learned_at", "effort"), _NUMBER),
    **dict.fromkeys(("activation", "init", "preset"), _NAME),
    **dict.fromkeys(("target", "features", "drop", "one_hot", "x", "y", "by"), _COLUMN),
    **dict.fromkeys(("figure", "results", "certificate"), _FILE),
    **dict.fromkeys(("out", "figures"), _FOLDER),
    "seed": Takes("N", seed),
    "depth": Takes("N", depth),
    "depths": Takes("N,N,...", depths),
    "learning_rate": Takes("RATE"),
    "scale": Takes("SCALE"),
    "rates": Takes("FROM:TO:COUNT", rates),
    "missing": Takes("drop|mean"),
    "only": Takes("ID"),
    "scheduler": Takes("ADDRESS"),
}


def reading(command: Callable[..., None]) -> Callable[..., None]:
    """The command as the option parser sees it: what is read here is text there, and the fields of
    a group of options (`options.Table`) stand in its place."""
    hints = get_type_hints(command, include_extras=True)
    readers = {name: takes.read for name, takes in TAKES.items() if takes.read is not None}
    groups: dict[str, Any] = {name: one for name, one in hints.items() if is_dataclass(one)}
    parameters = []
    for one in signature(command).parameters.values():
        group = groups.get(one.name)
        if group is not None:
            each = get_type_hints(group, include_extras=True)
            needed = group.needed if one.default is Parameter.empty else ()
            for field in signature(group).parameters.values():
                default = Parameter.empty if field.name in needed else field.default
                parameters.append(field.replace(annotation=each[field.name], default=default))
            continue
        hint, default = hints[one.name], one.default
        if one.name in readers:
            optional = default is None
            text: Any = str | None if optional else str
            hint = Annotated[(text, *get_args(hint)[1:])]
            default = default if optional or default is Parameter.empty else f"{default:g}"
        parameters.append(one.replace(annotation=hint, default=default))

    @wraps(command)
    def read(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(
                **{field: given.pop(field) for field in signature(group).parameters}
            )
        for name, value in given.items():
            if name in readers and isinstance(value, str):
                given[name] = readers[name](option(name), value)
        command(**given)

    read.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    read.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return read


class Commands(TyperGroup):
    """A group whose commands say what their options take."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, its parameters described."""
        command: Any = super().get_command(ctx, cmd_name)
        for parameter in command.params if command is not None else ():
            if parameter.param_type_name == "argument":
                # Its name says it; the parser would add its type, which is always text.
                parameter.display_type_rich = lambda ctx: None
            elif not parameter.is_flag and parameter.name in TAKES:
                parameter.metavar = parameter.metavar or TAKES[parameter.name].word
        return command

    def invoke(self, ctx: Any) -> Any:
        """The command; in what it complains of, settings are named as options."""
        try:
            return super().invoke(ctx)
        except FlatminError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            names = {one.name for one in getattr(command, "params", ())}
            first = re.match(r"[a-z_]+\b(?!\.)(?: (?:and|needs) [a-z_]+)?", str(error))
            if first is None or first[0].split()[0] not in names:
                raise
            words = [option(word) if word in names else word for word in first[0].split()]
            told = " ".join(words) + str(error)[first.end() :]
            raise type(error)(told).with_traceback(error.__traceback__) from None
