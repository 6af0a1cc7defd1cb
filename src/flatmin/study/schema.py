"""The tables of a study, column by column. Plain Parquet; the version is in the metadata.

A number that does not exist (a sharpness after divergence, a test risk without test rows) is null.
"""

from __future__ import annotations

from typing import Any

import pyarrow

from flatmin.dynamics.measures import LAYER_MEASURES

pa: Any = pyarrow

VERSION = "3"

_NUMBER, _WHOLE, _WORD, _YES = pa.float64(), pa.int64(), pa.string(), pa.bool_()
_LAYERS = pa.list_(pa.float64())

ROW_COLUMNS: tuple[tuple[str, Any, str], ...] = (
    ("run", _WHOLE, "number of the run in the study, from 0"),
    ("dataset", _WHOLE, "number of the data set, from 0"),
    ("depth", _WHOLE, "number of layers L"),
    ("width", _WHOLE, "width of the hidden layers"),
    ("init", _WORD, "name of the initialisation"),
    ("scale", _NUMBER, "scale of the initialisation"),
    ("learning_rate", _NUMBER, "learning rate eta; null for gradient flow"),
    ("relative_rate", _NUMBER, "eta over the critical rate, 2/S_min of descent; null for flow"),
    ("step_limit", _WHOLE, "largest number of steps allowed"),
    ("repetition", _WHOLE, "number of the repetition, from 0"),
    ("state", _WORD, "settled, learning, oscillating, stalled or diverged"),
    ("learned", _YES, "whether excess_risk is at most learned_at of that of w = 0"),
    ("period", _WHOLE, "steps after which an oscillation repeats; null if it does not"),
    ("more_steps", _NUMBER, "steps that a run still learning needs at its last speed"),
    (
        "edge_share",
        _NUMBER,
        "S over edge, if not settled midway to the next step; null for flow",
    ),
    ("steps", _WHOLE, "steps taken"),
    ("time", _NUMBER, "time of gradient flow at the end; null for descent"),
    ("integration_error", _NUMBER, "sum of the integrator's error estimates; null for descent"),
    ("initial_sharpness", _NUMBER, "sharpness of the initial weights"),
    ("initial_sharpness_residual", _NUMBER, "its residual |Hv - Sv|"),
    ("initial_sharpness_converged", _YES, "whether it is certain to 1e-8 of the value"),
    ("sharpness", _NUMBER, "sharpness of the final weights; null after divergence"),
    ("sharpness_residual", _NUMBER, "its residual"),
    ("sharpness_converged", _YES, "whether it is certain to 1e-8 of the value"),
    ("initial_distance", _NUMBER, "|w - w*|^2 of the initial weights; null if not linear"),
    ("distance", _NUMBER, "|w - w*|^2 of the final weights; null after divergence or not linear"),
    ("train_risk", _NUMBER, "mean squared error on the training rows"),
    ("excess_risk", _NUMBER, "train_risk minus R_min, the least risk of a linear map"),
    ("test_risk", _NUMBER, "mean squared error on the test rows; null where there are none"),
    ("gradient_norm", _NUMBER, "norm of the gradient at the final weights"),
    ("minimal_sharpness", _NUMBER, "S_min of linear networks of this depth on these data"),
    ("edge", _NUMBER, "edge of stability of the method, 2/eta of descent; null for flow"),
    ("spectral_norm", _LAYERS, "|W_k|_2 of the final weights, k = 1..L"),
    ("rank_one_defect", _LAYERS, "|W_k|_F^2 - |W_k|_2^2 of the final weights, k = 1..L"),
    ("alignment", _LAYERS, "<v_{k+1}, u_k>^2 of the final weights, k = 1..L-1"),
)

TRACE_COLUMNS: tuple[tuple[str, Any, str], ...] = (
    ("run", _WHOLE, "number of the run, as in the table of runs"),
    ("step", _WHOLE, "steps taken so far"),
    ("time", _NUMBER, "time of gradient flow; null for descent"),
    ("excess_risk", _NUMBER, "excess risk R - R_min"),
    ("excess_risk_low", _NUMBER, "its least value since the entry before; null for flow"),
    ("excess_risk_high", _NUMBER, "its largest value since the entry before; null for flow"),
    ("distance", _NUMBER, "|w - w*|^2"),
    ("distance_low", _NUMBER, "its least value since the entry before; null for flow"),
    ("distance_high", _NUMBER, "its largest value since the entry before; null for flow"),
    ("gradient", _NUMBER, "norm of the gradient"),
    ("gradient_low", _NUMBER, "its least value since the entry before; null for flow"),
    ("gradient_high", _NUMBER, "its largest value since the entry before; null for flow"),
    ("sharpness", _NUMBER, "sharpness as followed along the run, without a proof"),
    ("sharpness_low", _NUMBER, "the smaller one of this step and the one before; null for flow"),
    ("sharpness_high", _NUMBER, "the larger one of this step and the one before; null for flow"),
    ("sharpness_residual", _NUMBER, "its residual"),
    ("sharpness_products", _NUMBER, "Hessian-vector products it took; null for flow"),
    *((name, _LAYERS, measure.meaning) for name, measure in LAYER_MEASURES.items()),
)


def trace_column(name: str, layered: bool) -> tuple[str, Any, str]:
    """The column of a recorded quantity that is not among these."""
    meaning = LAYER_MEASURES[name].meaning if name in LAYER_MEASURES else "as recorded"
    return name, _LAYERS if layered else _NUMBER, meaning


def schema_of(columns: tuple[tuple[str, Any, str], ...]) -> Any:
    fields = [pa.field(name, kind, metadata={"description": d}) for name, kind, d in columns]
    return pa.schema(fields, metadata={"flatmin_schema_version": VERSION})


ROWS_SCHEMA = schema_of(ROW_COLUMNS)
TRACES_SCHEMA = schema_of(TRACE_COLUMNS)
"""Columns that a study did not ask for are there and null; one it did ask for is never left out."""
