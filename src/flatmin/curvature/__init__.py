"""Sharpness of given weights, with its error."""

from flatmin.curvature.record import Sharpness
from flatmin.curvature.sharpness import hessian, minimiser_spectrum, sharpness

__all__ = ["Sharpness", "hessian", "minimiser_spectrum", "sharpness"]
