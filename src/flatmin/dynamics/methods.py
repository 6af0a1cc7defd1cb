"""All training methods by name, and which one a person asks for."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from flatmin.core.checks import check_choice
from flatmin.core.errors import SettingError
from flatmin.dynamics.central_flow import CentralFlow
from flatmin.dynamics.method import GradientDescent, GradientFlow, Method
from flatmin.dynamics.momentum import HeavyBall, Nesterov

__all__ = ["METHODS", "OWN", "GradientDescent", "GradientFlow", "HeavyBall", "Method", "Nesterov"]

METHODS: dict[str, type[Any]] = {
    method.name: method
    for method in (GradientDescent, GradientFlow, HeavyBall, Nesterov, CentralFlow)
}
OWN = {name: own for method in METHODS.values() for name, own in method.own.items()}
"""What methods have of their own."""


def required(name: str) -> tuple[str, ...]:
    """What the method of this name has of its own and cannot do without.

    >>> required("nesterov"), required("flow")
    (('momentum',), ())
    """
    taken = fields(METHODS[check_choice("method", name, METHODS)])
    return tuple(one.name for one in taken if one.name in OWN and one.default is MISSING)


def method_of(name: str, **values: Any) -> Method:
    """The method of this name, from those of the values that it takes and that are given.

    >>> method_of("heavy-ball", learning_rate=0.1, momentum=0.9, rtol=None)
    HeavyBall(learning_rate=0.1, momentum=0.9)
    """
    kind = METHODS[check_choice("method", name, METHODS)]
    given = (one.name for one in fields(kind) if values.get(one.name) is not None)
    method: Method = kind(**{key: values[key] for key in given})
    return method


def asked_for(rate: object, **choice: Any) -> tuple[str, dict[str, float]]:
    """The name of the method that flags and own settings ask for, and these settings, checked.

    A flag asks for its method; without one it is the first that takes all settings given, which is
    gradient descent where there are none, the only one whose rate is looked for.

    >>> asked_for(0.1, momentum="0.9", nesterov=True)
    ('nesterov', {'momentum': 0.9})
    """
    flags = {kind.flag[0]: kind for kind in METHODS.values() if kind.flag[0]}
    chosen = {check_choice("setting", name, (*flags, *OWN)): choice[name] for name in choice}
    given = {n: OWN[n].check(n, chosen[n]) for n in OWN if chosen.get(n) is not None}
    raised = [flag for flag in flags if chosen.get(flag)]
    takers = (kind for kind in METHODS.values() if given.keys() <= kind.own.keys())
    kind = flags[raised[0]] if raised else next(takers)
    if rate is not None and kind.continuous:
        raised.insert(0, "learning_rate")
    for name in given:
        if rate is None and not (kind.continuous and name in kind.own):
            raise SettingError(f"{name} needs learning_rate: rates are tested without {name}")
    for name in (name for name in required(kind.name) if name not in given):
        raise SettingError(f"{raised[0]} needs {name}")
    if rate is None and not kind.continuous and raised:
        raise SettingError(f"{raised[0]} needs learning_rate: rates are tested without it")
    apart = [*raised, *(name for name in given if name not in kind.own)]
    if len(apart) > 1:
        raise SettingError(f"{apart[0]} and {apart[1]} exclude each other: give one of them")
    return kind.name, given
