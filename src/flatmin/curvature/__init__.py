"""Sharpness of given weights, with its error."""

from flatmin.curvature.record import Sharpness
from flatmin.curvature.sharpness import minimiser_spectrum, sharpness

__all__ = ["Sharpness", "minimiser_spectrum", "sharpness"]
