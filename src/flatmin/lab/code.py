"""A run as lines of Python, and as a command: both reproduce it."""

from __future__ import annotations

import shlex

from flatmin.dynamics.methods import METHODS
from flatmin.lab.engine import QUANTITIES, Ground, recording, segments
from flatmin.lab.settings import Setting, address
from flatmin.lab.tables import Tables
from flatmin.study.sections import PREPARING


def as_python(ground: Ground, tables: Tables) -> str:
    """Lines that make the run; `trace` is what the page shows."""
    setting = ground.setting
    lines = ["import flatmin", *_data(setting, tables), *_network(ground)]
    if setting.networks == 1 and not setting.changes:
        init = setting.initialisation
        lines += [
            f"run = flatmin.train(samples, network, init={init.name!r}, scale={init.scale!r}, "
            f"seed={setting.seed},",
            f"    method={_method(setting)}, steps={setting.steps}, record_every={setting.every})",
            "trace = run.trace",
            "print(run.interpretation())",
        ]
        return "\n".join(lines) + "\n"
    return "\n".join([*lines, *_pieces(ground)]) + "\n"


def _data(setting: Setting, tables: Tables) -> list[str]:
    problem = setting.problem
    if problem.paper is not None:
        return [
            "from flatmin.data.sets import paper_output_vector, paper_samples",
            f"samples = paper_samples({problem.paper!r})",
        ]
    if problem.file is not None:
        words = [repr(tables.find(problem.file).shown), repr(problem.target_names)]
        if problem.features is not None:
            words.append(f"features={list(problem.features)!r}")
        prepared = [
            f"{name}={value!r}" for name, value in vars(problem.preparation()).items() if value
        ]
        if prepared:
            words.append(f"preparation=flatmin.Preparation({', '.join(prepared)})")
        return [f"samples = flatmin.read_samples({', '.join(words)})"]
    seed = setting.seed if problem.seed is None else problem.seed
    words = [f"n={problem.n}", f"d={problem.d}", f"noise={problem.noise!r}", f"seed={seed}"]
    if problem.generator == "spectrum":
        words.append(f"condition_number={problem.condition_number!r}")
        words.append(f"alignment={problem.alignment!r}")
    elif problem.outputs > 1:
        words.append(f"targets={problem.outputs}")
    return [f"samples = flatmin.{problem.generator}_samples({', '.join(words)})"]


def _network(ground: Ground) -> list[str]:
    network, setting = ground.network, ground.setting
    asked = setting.architecture
    if network.output is None:
        width = "" if asked.width is None else f", width={asked.width}"
        return [
            f"network = flatmin.Architecture.multivariate({network.inputs}, {network.depth}, "
            f"{network.widths[-1]}{width})"
        ]
    if asked.kind == "residual":
        if asked.output is None and setting.problem.paper in ("linear", "nonlinear"):
            p = "paper_output_vector()"
        else:
            p = repr(list(network.output))
        return [f"network = flatmin.Architecture.residual({network.inputs}, {network.depth}, {p})"]
    words = [str(network.inputs), str(network.depth)]
    if asked.width is not None:
        words.append(f"width={asked.width}")
    if not network.linear:
        words.append(f"activation={network.activation_name!r}")
    if network.biases:
        words.append("biases=True")
    return [f"network = flatmin.Architecture.mlp({', '.join(words)})"]


def _method(setting: Setting, rate: str | None = None) -> str:
    method = setting.method
    words = [] if method.continuous else [rate or repr(method.learning_rate)]
    words += map(repr, method.own().values())
    return f"flatmin.{METHODS[method.name].__name__}({', '.join(words)})"


def _pieces(ground: Ground) -> list[str]:
    """An ensemble, or a run whose rate changes: one call a stretch of steps."""
    setting, watch = ground.setting, recording(ground)
    init, count = setting.initialisation, setting.networks
    more = f", *((i,) for i in range(1, {count}))" if count > 1 else ""
    lines = [
        f"now = flatmin.initialise(network, {init.name!r}, {init.scale!r}, {setting.seed},",
        f'    [("train",){more}], samples.regression())',
        f"watch = flatmin.Recording({watch.every}, {QUANTITIES!r},",
        f"    sharpness_steps={watch.sharpness_steps})",
    ]
    if setting.method.continuous:
        return [
            *lines,
            f"outcome = flatmin.flow(samples.regression(), now, max_steps={setting.steps}, "
            "recording=watch)",
            "trace = outcome.recorded",
        ]
    parts = segments(setting)
    moving = setting.method.with_rates(1.0).rule.copies > 0
    lines.append("traces, beside = [], None" if moving else "traces = []")
    pairs = [(part.rate, part.end - part.begin) for part in parts]
    lines.append(f"for rate, steps in {pairs!r}:")
    extra = ""
    if moving:
        extra = f"\n        rule={_method(setting, 'rate')}.rule, beside=beside,"
    lines += [
        f"    outcome = flatmin.descend(samples, now, rate, steps, recording=watch,{extra}",
        f"        observe_ends=rate == {parts[-1].rate!r})"
        if len({part.rate for part in parts}) == len(parts)
        else "        observe_ends=True)",
        f"    now{', beside' if moving else ''} = "
        f"outcome.ensemble{', outcome.beside' if moving else ''}",
        "    traces.append(outcome.recorded)",
    ]
    return lines


def as_command(ground: Ground, tables: Tables) -> str:
    """One line for a shell: `flatmin train` where it can say it, else the address again."""
    setting = ground.setting
    plain = setting.networks == 1 and not setting.changes
    problem, asked, init = setting.problem, setting.architecture, setting.initialisation
    fits = asked.kind == ("residual" if init.name == "residual" else "mlp")
    if asked.kind == "residual" and problem.paper is None:
        fits = fits and asked.output in (None, "random")
    elif asked.kind == "residual":
        fits = fits and asked.output in (None, "paper")
    known = problem.paper == "linear" or problem.file is not None
    known = known and all(
        METHODS[setting.method.name].own[name].help for name in setting.method.own()
    )
    if not (plain and fits and known):
        text = address(setting.plain())
        return f"flatmin lab --replay {shlex.quote(text)} --out run.csv"
    words: list[str] = ["flatmin", "train"]
    if problem.file is not None:
        words.append(tables.find(problem.file).shown)
        for name in problem.target_names:
            words += ["--target", name]
        words += _table_options(setting)
    words += ["--depth", str(asked.depth)]
    if asked.width is not None:
        words += ["--width", str(asked.width)]
    if asked.activation != "linear":
        words += ["--activation", asked.activation]
    words += ["--biases"] if asked.biases else []
    words += ["--init", init.name, "--scale", repr(init.scale), "--seed", str(setting.seed)]
    words += _method_options(setting)
    words += ["--steps", str(setting.steps), "--record-every", str(setting.every), "--out", "run"]
    return shlex.join(words)


def _table_options(setting: Setting) -> list[str]:
    words: list[str] = []
    for name in ("features", *PREPARING):
        value, option = getattr(setting.problem, name), f"--{name.replace('_', '-')}"
        if value is True:
            words.append(option)
        else:
            for one in (value,) if isinstance(value, str) else value or ():
                words += [option, one]
    return words


def _method_options(setting: Setting) -> list[str]:
    method = setting.method
    flag = METHODS[method.name].flag[0]
    words = [] if method.continuous else ["--learning-rate", repr(method.learning_rate)]
    for name, value in method.own().items():
        words += [f"--{name}", repr(value)]
    return words + ([f"--{flag}"] if flag else [])
