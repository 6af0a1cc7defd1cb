"""All training methods by name."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from flatmin.core.checks import check_choice
from flatmin.dynamics.method import GradientDescent, GradientFlow, Method
from flatmin.dynamics.momentum import HeavyBall, Nesterov

__all__ = ["METHODS", "OWN", "GradientDescent", "GradientFlow", "HeavyBall", "Method", "Nesterov"]

METHODS: dict[str, type[Any]] = {
    method.name: method for method in (GradientDescent, GradientFlow, HeavyBall, Nesterov)
}
OWN = {name: check for method in METHODS.values() for name, check in method.own.items()}
"""What methods have of their own, with the check of each."""


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
