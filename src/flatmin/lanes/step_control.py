"""When a step of gradient flow is accepted, how long the next one is, and when a run ends.

A step of error e in units of what is allowed is accepted if e < 1, and the next has the length

    0.9 h e_previous^(1/32) / e^(3/32)      or      0.9 h / e^(1/8) after a rejection

within limits of growth; the powers are square roots, whose bits are the same everywhere. A step
must also err by less than a twentieth of its own length. This matters only near a minimiser, where
h is at the edge of stability: the tolerance alone would let the fastest mode grow up to it, and the
gradient would stay that large.

Every lane has its own time, step, error and end.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flatmin.core.arrays import Float
from flatmin.lanes.algebra import larger, smaller
from flatmin.lanes.compiling import inlined
from flatmin.lanes.vectors import fma, root, where

# States of a network, and of a lane without one
RUNNING, CONVERGED, REACHED, STALLED, EMPTY = 0, 1, 2, 3, 4

# Unless given: the relative tolerance of flow, and after how many steps it ends
RTOL, FLOW_STEPS = 1e-8, 100_000

SAFETY = 0.9
SLOWEST, FASTEST = 0.2, 10.0  # least and greatest ratio of successive steps
CUT = 0.1  # the ratio after a step whose error is not a number or infinite
SHARE = 0.05  # greatest error of a step, as a share of its length
ROUNDING = 1e-15  # what this asks of an error at least, as a share of |W|
LAST = 1.01  # a step is the last if so many steps pass the end
LEAST_ERROR = 1e-4  # smallest error the controller remembers
TINY, HUGE = 1e-300, 1e300


class Control(NamedTuple):
    """What is kept of a network from step to step: a row of the controls."""

    time: Any  # time is time + time_low, so that steps far below the
    time_low: Any  # rounding of a large time still count
    step: Any  # next step, 0 if not yet begun
    previous: Any  # last accepted error
    ceiling: Any  # greatest ratio of the next step to this one
    end: Any  # time to stop at exactly, may be infinite
    state: Any  # RUNNING, or why the lane ended: CONVERGED, REACHED (its end), STALLED
    accepted: Any  # numbers of steps
    rejected: Any
    excess: Any  # excess risk and squared gradient norm at the weights
    gradient: Any
    error: Any  # sum over accepted steps of |local error estimate|_2


TIME, TIME_LOW, STEP, PREVIOUS, CEILING, END = 0, 1, 2, 3, 4, 5
STATE, ACCEPTED, REJECTED, EXCESS, GRADIENT, ERROR = 6, 7, 8, 9, 10, 11
FIELDS = len(Control._fields)


class Settings(NamedTuple):
    """What the integrator is asked for."""

    rtol: float  # a step's error is the rms of its entries over
    atol: float  # atol + rtol max(|W|, |W_new|)
    tolerance: float  # converged: |gradient| at most this
    settled: float  # and excess risk at most this
    rounding: float  # or at most this, which is what rounding of w leaves of it
    max_steps: float  # attempted steps of a lane in all, after which it is STALLED


class Sums(NamedTuple):
    """Sums of squares of a step over the weights."""

    fifth: Any  # the errors of order 5 and 3 in units of the tolerance,
    third: Any
    local_fifth: Any  # and in those of the weights
    local_third: Any
    change: Any
    weights: Any


def new_controls(networks: int) -> Float:
    """Controls [network, FIELDS] at time 0, to be run without end."""
    controls = np.zeros((networks, FIELDS))
    controls[:, PREVIOUS] = LEAST_ERROR
    controls[:, CEILING] = FASTEST
    controls[:, END] = np.inf
    return controls


@inlined
def eighth(x: Any) -> Any:
    """x^(1/8)."""
    return root(root(root(x)))


@inlined
def judged(c: Control, excess: Any, gradient: Any, settings: Settings) -> Control:
    """With excess risk and squared gradient at the weights, and the states that follow."""
    fine = (c.accepted + c.rejected < settings.max_steps) & (gradient < np.inf)
    # Without any gradient nothing would ever move.
    fine = fine & (gradient > 0.0) & ((c.step == 0.0) | (c.step > fma(2.0**-100, c.time, TINY)))
    flat = gradient <= settings.tolerance * settings.tolerance
    state = where(fine, RUNNING, STALLED)
    state = where(c.end - c.time - c.time_low > 0.0, state, REACHED)
    arrived = (flat & (excess <= settings.settled)) | (excess <= settings.rounding)
    state = where(arrived, CONVERGED, state)
    state = where(c.state == RUNNING, state, c.state)
    return Control(
        c.time, c.time_low, c.step, c.previous, c.ceiling, c.end,
        state, c.accepted, c.rejected, excess, gradient, c.error,
    )  # fmt: skip


@inlined
def first_step(weights: Any, slope: Any) -> Any:
    """A step along the gradient by 1 % of the weights, both in units of the tolerance; of that
    itself where they are below it. The next may be ten times as long."""
    return 0.01 * larger(weights, 1.0) / slope


@inlined
def fitted(c: Control, h: Any) -> Any:
    """Whether the end is farther than h, and the step: the last one is what remains."""
    remaining = c.end - c.time - c.time_low
    free = LAST * h < remaining
    return free, where(free, h, remaining)


@inlined
def step_error(sums: Sums, parameters: Any) -> Any:
    """|e5|^2 / sqrt(|e5|^2 + |e3|^2 / 100) in units of what is allowed, and in the weights' own."""
    fused = fma(parameters, fma(0.01, sums.third, sums.fifth), TINY)
    scaled = sums.fifth / root(fused)
    local = sums.local_fifth / root(fma(0.01, sums.local_third, sums.local_fifth) + TINY)
    share = fma(SHARE, root(sums.change), fma(ROUNDING, root(sums.weights), TINY))
    return larger(local / share, scaled), local


@inlined
def stepped(c: Control, h: Any, move: Any, free: Any, e: Any, local: Any) -> Control:
    """After a step `move` of error e: accepted if e < 1; lanes that ended stay as they are."""
    running = c.state == RUNNING
    accept = running & (e < 1.0)
    bounded = larger(e, 1e-30)
    e8 = eighth(bounded)
    e16 = root(e8)
    up = SAFETY * root(root(eighth(c.previous))) / (e16 * root(e16))
    up = larger(smaller(up, c.ceiling), SLOWEST)
    down = where(e < HUGE, larger(SAFETY / e8, SLOWEST), CUT)
    # A step fitted to the end leaves h for what follows.
    grown = move * up
    grown = smaller(where(free, grown, larger(grown, h)), HUGE)
    # The exact sum of time, which is two numbers, and the step.
    addend = c.time_low + move
    ahead = c.time + addend
    gained = ahead - c.time
    rest = (c.time - (ahead - gained)) + (addend - gained)
    return Control(
        where(accept, where(free, ahead, c.end), c.time),
        where(accept, where(free, rest, 0.0), c.time_low),
        where(running, where(accept, grown, move * down), h),
        where(accept, larger(bounded, LEAST_ERROR), c.previous),
        where(accept, FASTEST, where(running, 1.0, c.ceiling)),
        c.end,
        c.state,
        c.accepted + where(accept, 1.0, 0.0),
        c.rejected + where(running & ~accept, 1.0, 0.0),
        c.excess,
        c.gradient,
        where(accept, c.error + local, c.error),
    )
