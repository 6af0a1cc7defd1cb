"""flatmin: the sharpness of deep linear networks.

The public names below are loaded when first used, so that `import flatmin` and the command's
`--help` stay fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flatmin.core.errors import DataError as DataError
    from flatmin.core.errors import FlatminError as FlatminError
    from flatmin.core.errors import SettingError as SettingError
    from flatmin.curvature import Sharpness as Sharpness
    from flatmin.curvature import minimiser_spectrum as minimiser_spectrum
    from flatmin.curvature import sharpness as sharpness
    from flatmin.data.generators import gaussian_samples as gaussian_samples
    from flatmin.data.generators import spectrum_samples as spectrum_samples
    from flatmin.data.generators import whitened_samples as whitened_samples
    from flatmin.data.preparation import Preparation as Preparation
    from flatmin.data.regression import Regression as Regression
    from flatmin.data.regression import read_regression as read_regression
    from flatmin.data.samples import Samples as Samples
    from flatmin.data.samples import read_samples as read_samples
    from flatmin.dynamics.advice import Advice as Advice
    from flatmin.dynamics.advice import advise as advise
    from flatmin.dynamics.atlas import Atlas as Atlas
    from flatmin.dynamics.atlas import atlas as atlas
    from flatmin.dynamics.descent import descend as descend
    from flatmin.dynamics.endings import State as State
    from flatmin.dynamics.flow import flow as flow
    from flatmin.dynamics.methods import GradientDescent as GradientDescent
    from flatmin.dynamics.methods import GradientFlow as GradientFlow
    from flatmin.dynamics.methods import HeavyBall as HeavyBall
    from flatmin.dynamics.methods import Nesterov as Nesterov
    from flatmin.dynamics.outcome import Outcome as Outcome
    from flatmin.dynamics.recording import Recording as Recording
    from flatmin.dynamics.recording import Trace as Trace
    from flatmin.dynamics.training import Training as Training
    from flatmin.dynamics.training import train as train
    from flatmin.dynamics.working_rates import RateCurve as RateCurve
    from flatmin.dynamics.working_rates import rate_curve as rate_curve
    from flatmin.network.architecture import Architecture as Architecture
    from flatmin.network.ensemble import Ensemble as Ensemble
    from flatmin.network.initialisation import initialise as initialise
    from flatmin.theory.certificate import Certificate as Certificate
    from flatmin.theory.certificate import certify as certify
    from flatmin.theory.flattest_depth import flattest_depth as flattest_depth
    from flatmin.theory.minimal_sharpness import minimal_sharpness as minimal_sharpness
    from flatmin.theory.minimisers import flattest_minimiser as flattest_minimiser
    from flatmin.theory.minimisers import minimiser_of_sharpness as minimiser_of_sharpness
    from flatmin.theory.prediction import Prediction as Prediction
    from flatmin.theory.prediction import predict as predict

_HOMES = {
    "DataError": "flatmin.core.errors",
    "FlatminError": "flatmin.core.errors",
    "SettingError": "flatmin.core.errors",
    "Sharpness": "flatmin.curvature",
    "minimiser_spectrum": "flatmin.curvature",
    "sharpness": "flatmin.curvature",
    "gaussian_samples": "flatmin.data.generators",
    "spectrum_samples": "flatmin.data.generators",
    "whitened_samples": "flatmin.data.generators",
    "Preparation": "flatmin.data.preparation",
    "Regression": "flatmin.data.regression",
    "read_regression": "flatmin.data.regression",
    "Samples": "flatmin.data.samples",
    "read_samples": "flatmin.data.samples",
    "Advice": "flatmin.dynamics.advice",
    "advise": "flatmin.dynamics.advice",
    "Atlas": "flatmin.dynamics.atlas",
    "atlas": "flatmin.dynamics.atlas",
    "descend": "flatmin.dynamics.descent",
    "State": "flatmin.dynamics.endings",
    "flow": "flatmin.dynamics.flow",
    "GradientDescent": "flatmin.dynamics.methods",
    "GradientFlow": "flatmin.dynamics.methods",
    "HeavyBall": "flatmin.dynamics.methods",
    "Nesterov": "flatmin.dynamics.methods",
    "Outcome": "flatmin.dynamics.outcome",
    "Recording": "flatmin.dynamics.recording",
    "Trace": "flatmin.dynamics.recording",
    "Training": "flatmin.dynamics.training",
    "train": "flatmin.dynamics.training",
    "RateCurve": "flatmin.dynamics.working_rates",
    "rate_curve": "flatmin.dynamics.working_rates",
    "Architecture": "flatmin.network.architecture",
    "Ensemble": "flatmin.network.ensemble",
    "initialise": "flatmin.network.initialisation",
    "Certificate": "flatmin.theory.certificate",
    "certify": "flatmin.theory.certificate",
    "flattest_depth": "flatmin.theory.flattest_depth",
    "minimal_sharpness": "flatmin.theory.minimal_sharpness",
    "flattest_minimiser": "flatmin.theory.minimisers",
    "minimiser_of_sharpness": "flatmin.theory.minimisers",
    "Prediction": "flatmin.theory.prediction",
    "predict": "flatmin.theory.prediction",
}

__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'flatmin' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
