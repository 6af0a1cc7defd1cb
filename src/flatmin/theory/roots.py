"""A root of a function of one variable, to the last digits.

SciPy's `brentq` would do as well. It is not used because importing `scipy.optimize` takes 0.31 s of
the 0.9 s that `flatmin predict --no-measure` took with it (`python -X importtime`, two cores).
"""

from __future__ import annotations

from collections.abc import Callable

_EPS = 2.3e-16


def root(function: Callable[[float], float], low: float, high: float) -> float:
    """The root between two points at which the function has different signs.

    The method of Chandrupatla (1997): keep a bracket [a, b] with c the point before; interpolate
    inversely by a quadratic through a, b and c where that is monotone, and bisect otherwise. With
    xi = (a - b)/(c - b) and phi = (f_a - f_b)/(f_c - f_b), it is monotone if
    1 - sqrt(1 - xi) < phi < sqrt(xi).

    >>> root(lambda x: x**3 - 2.0, 0.0, 2.0) == 2.0 ** (1.0 / 3.0)
    True
    """
    a, b = high, low
    f_a, f_b = function(a), function(b)
    if f_a * f_b > 0.0:
        raise ValueError(f"the function has one sign at both ends: {f_b} and {f_a}")
    t = 0.5
    # Every second step halves the bracket at least: this many end at neighbouring numbers.
    for _ in range(4200):
        x = a + t * (b - a)
        f_x = function(x)
        if (f_x > 0.0) == (f_a > 0.0):
            c, f_c = a, f_a
        else:
            c, f_c = b, f_b
            b, f_b = a, f_a
        a, f_a = x, f_x
        best, f_best = (a, f_a) if abs(f_a) < abs(f_b) else (b, f_b)
        # Two roundings of the root itself, as a share of the bracket.
        least = 2.0 * _EPS * abs(best) / abs(b - a) if b != a else 1.0
        if f_best == 0.0 or least >= 0.5:
            return best
        xi, phi = (a - b) / (c - b), (f_a - f_b) / (f_c - f_b)
        if phi**2 < xi and (1.0 - phi) ** 2 < 1.0 - xi:
            t = f_a / (f_b - f_a) * f_c / (f_b - f_c)
            t += (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
        else:
            t = 0.5
        t = min(max(t, least), 1.0 - least)
    return best
