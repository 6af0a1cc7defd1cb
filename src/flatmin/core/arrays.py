"""What arrays hold, by name, and arrays of numbers from whatever a person gave."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatmin.core.checks import kind_of
from flatmin.core.errors import DataError, SettingError

Float = NDArray[np.float64]
Whole = NDArray[np.int64]
Yes = NDArray[np.bool_]


def numbers(name: str, values: Any) -> Float:
    """An array of real numbers; what is masked is missing (nan).

    >>> numbers("w", np.ma.masked_equal([1, 2, 3], 2))
    array([ 1., nan,  3.])
    """
    if hasattr(values, "toarray"):
        raise DataError(f"{name} is a sparse {kind_of(values)}; expected an array (toarray())")
    try:
        array = plain_array(values)
    except ValueError:
        raise DataError(f"{name} has rows of unequal length; expected an array") from None
    if array.dtype.kind not in "biuf":
        what = f"of type {array.dtype}" if array.ndim else kind_of(values)
        raise DataError(f"{name} is {what}; expected real numbers")
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float64)


def one_or_each(name: str, values: Any, count: int) -> Float:
    """One number for all networks, or one per network; as one per network."""
    array = numbers(name, values)
    if array.shape not in ((), (count,)):
        raise SettingError(f"{name} must be one number or one per network ({count})")
    return np.broadcast_to(array, (count,)).copy()


def aligned(shape: tuple[int, ...], dtype: Any = np.float64, filled: bool = True) -> NDArray[Any]:
    """Zeros, or what was there, that begin at a cache line: no lane vector straddles two."""
    kind = np.dtype(dtype)
    size, line = math.prod(shape), 64 // kind.itemsize
    buffer = (np.zeros if filled else np.empty)(size + line, dtype=kind)
    start = -buffer.ctypes.data // kind.itemsize % line
    return buffer[start : start + size].reshape(shape)


def plain_array(values: Any) -> NDArray[Any]:
    """An array, without the numbers that a mask hides."""
    return np.asarray(unmasked(values))


def unmasked(values: Any) -> Any:
    """What was given, or where a mask hides some of its numbers, an array with nan for these: NumPy
    takes what is behind a mask for values."""
    parts = values if isinstance(values, list | tuple) else ()
    if any(isinstance(part, np.ma.MaskedArray) for part in (values, *parts)):
        masked: Any = np.ma.array(values)
        if np.ma.is_masked(masked) and masked.dtype.kind in "biuf":
            return masked.astype(np.float64).filled(np.nan)
    return values
