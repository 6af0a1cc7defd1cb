"""The Runge-Kutta method of Dormand and Prince of order 8 with error estimates of order 5 and 3.

DOP853 of Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, section II.10;
the numbers are those of SciPy. Only non-zero coefficients are kept: stage s of a step h from W is

    K_s = f(W + h sum_m COEFFICIENTS[s, m] K_{STAGES[s, m]})      m < COUNTS[s],  s = 0 .. 11
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.integrate import DOP853

_method: Any = DOP853

SIZE = 12
"""Number of stages; the derivative at the new weights is stage 0 of the next step."""

COUNTS = np.array([np.count_nonzero(row) for row in _method.A])
STAGES = np.zeros((SIZE, COUNTS.max()), np.int64)
COEFFICIENTS = np.zeros((SIZE, COUNTS.max()))
for _s, _row in enumerate(_method.A):
    STAGES[_s, : COUNTS[_s]] = np.flatnonzero(_row)
    COEFFICIENTS[_s, : COUNTS[_s]] = _row[np.flatnonzero(_row)]

# The step is h sum_m UPDATE[m] K_{FINAL[m]}, the estimate of order 5 h sum_m FIFTH[m] K_{FINAL[m]}
FINAL = np.flatnonzero(_method.B)
UPDATE = _method.B[FINAL].copy()
FIFTH = _method.E5[FINAL].copy()

# The estimate of order 3 is the step minus h sum_m THIRD[m] K_{FINAL[THIRD_AT[m]]}
_third = _method.B[FINAL] - _method.E3[FINAL]
THIRD_AT = np.flatnonzero(_third)
THIRD = _third[THIRD_AT].copy()
