"""Sharpness of given weights, with its error."""

from flatmin.curvature.operators import HessianOperator
from flatmin.curvature.record import Sharpness
from flatmin.curvature.sharpness import hessian, minimiser_spectrum, sharpness

__all__ = ["HessianOperator", "Sharpness", "hessian", "minimiser_spectrum", "sharpness"]
