"""flatmin: the sharpness of deep linear networks.

The public names below are loaded when first used, so that `import flatmin` and the command's
`--help` stay fast: the imports are for those who check types, and the only list of names there is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from flatmin.core.errors import DataError as DataError
    from flatmin.core.errors import FlatminError as FlatminError
    from flatmin.core.errors import SettingError as SettingError
    from flatmin.curvature import HessianOperator as HessianOperator
    from flatmin.curvature import Sharpness as Sharpness
    from flatmin.curvature import hessian as hessian
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
    from flatmin.dynamics.atlas import atlas as atlas
    from flatmin.dynamics.atlas import atlases as atlases
    from flatmin.dynamics.atlas_record import Atlas as Atlas
    from flatmin.dynamics.atlas_record import Atlases as Atlases
    from flatmin.dynamics.central_flow import CentralFlow as CentralFlow
    from flatmin.dynamics.descent import descend as descend
    from flatmin.dynamics.endings import State as State
    from flatmin.dynamics.flow import flow as flow
    from flatmin.dynamics.forecast import Forecast as Forecast
    from flatmin.dynamics.forecast import forecast as forecast
    from flatmin.dynamics.methods import GradientDescent as GradientDescent
    from flatmin.dynamics.methods import GradientFlow as GradientFlow
    from flatmin.dynamics.momentum import HeavyBall as HeavyBall
    from flatmin.dynamics.momentum import Nesterov as Nesterov
    from flatmin.dynamics.outcome import Outcome as Outcome
    from flatmin.dynamics.recording import Recording as Recording
    from flatmin.dynamics.recording import Trace as Trace
    from flatmin.dynamics.settings import train_network as train_network
    from flatmin.dynamics.training import Training as Training
    from flatmin.dynamics.training import train as train
    from flatmin.dynamics.working_rates import RateCurve as RateCurve
    from flatmin.dynamics.working_rates import rate_curve as rate_curve
    from flatmin.ledger.check import check as check
    from flatmin.ledger.ledger import Ledger as Ledger
    from flatmin.network.architecture import Architecture as Architecture
    from flatmin.network.ensemble import Ensemble as Ensemble
    from flatmin.network.initialisation import initialise as initialise
    from flatmin.study.results import Results as Results
    from flatmin.study.runner import StudyRun as StudyRun
    from flatmin.study.runner import run_study as run_study
    from flatmin.study.spec import Study as Study
    from flatmin.theory.certificate import Certificate as Certificate
    from flatmin.theory.certificate import certify as certify
    from flatmin.theory.flattest_depth import flattest_depth as flattest_depth
    from flatmin.theory.minimal_sharpness import minimal_sharpness as minimal_sharpness
    from flatmin.theory.minimisers import flattest_minimiser as flattest_minimiser
    from flatmin.theory.minimisers import minimiser_of_sharpness as minimiser_of_sharpness
    from flatmin.theory.prediction import Prediction as Prediction
    from flatmin.theory.prediction import predict as predict


def _homes() -> dict[str, str]:
    """Where each of them is: what is imported above for those who check types."""
    import ast
    from pathlib import Path

    return {
        name.name: str(node.module)
        for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("flatmin.")
        for name in node.names
    }


def __getattr__(name: str) -> Any:
    value: Any
    homes = _homes()
    if name == "__all__":
        value = [*homes, "__version__"]
    elif name in homes:
        from importlib import import_module

        value = getattr(import_module(homes[name]), name)
    else:
        raise AttributeError(f"module 'flatmin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__getattr__("__all__")]
