"""The shipped data against published check values and against a fresh run of the generator."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from flatmin.core.errors import SettingError
from flatmin.data.sets import _arrays, paper_output_vector, paper_samples
from flatmin.theory.minimal_sharpness import minimal_sharpness

CHECKS = [
    ("linear_X", [-0.95431787, 1.4599903, -0.0287581], 36.4952581),
    ("linear_y", [2.7505026, 0.5263443], 11.8072441),
    ("residual_p", [-0.6706751, -0.6670695, -0.2490087], -1.8131803),
    ("depth_5_p", [0.45988265], 1.0477970),
    ("depth_10_p", [0.5133372], 1.3850048),
    ("depth_20_p", [0.76721656], 0.3598766),
    ("depth_40_p", [0.1059467], 1.1392344),
    ("underdetermined_X", [0.9402752, -0.8859723, -0.2817921], 18.7949669),
    ("underdetermined_y", [-0.9572573, 0.9258081], -2.5929183),
    ("nonlinear_y", [2.042051, -0.46203518], 14.3926271),
]


@pytest.mark.parametrize(("name", "first", "total"), CHECKS)
def test_check_values(name, first, total):
    array = _arrays()[name]
    np.testing.assert_allclose(array.ravel()[: len(first)], first, rtol=5e-7)
    assert array.sum() == pytest.approx(total, rel=5e-7)


@pytest.mark.parametrize(
    ("name", "depth", "a", "least"),
    [
        ("linear", 10, 0.9328053, 18.699555),
        ("underdetermined", 5, 1.7166779, 18.631521),
        ("nonlinear", 10, 0.9674090, 19.396212),
    ],
)
def test_derived_values(name, depth, a, least):
    data = paper_samples(name).regression()
    assert data.a == pytest.approx(a, rel=1e-6)
    assert data.w_star_norm == pytest.approx(1.0, abs=1e-6)
    assert minimal_sharpness(data, depth).exact == pytest.approx(least, rel=1e-6)
    assert paper_samples(name, test=True).n == data.n


def test_the_generator_gives_what_is_shipped():
    path = Path(__file__).parent.parent / "scripts" / "recover_paper_data.py"
    spec = importlib.util.spec_from_file_location("recover_paper_data", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fresh, shipped = module.recover(), _arrays()
    assert set(fresh) == set(shipped)
    for name, array in fresh.items():
        np.testing.assert_allclose(shipped[name], array, rtol=3e-7, atol=3e-7)


def test_output_vectors():
    assert np.linalg.norm(paper_output_vector()) == pytest.approx(1.0, abs=1e-6)
    assert not np.array_equal(paper_output_vector(5), paper_output_vector(10))
    with pytest.raises(SettingError, match="depths 5, 10, 20 and 40"):
        paper_output_vector(7)
    with pytest.raises(SettingError, match="paper data must be one of"):
        paper_samples("quadratic")
