"""Certificates of S_min: narrow, true in many digits, and worthless once tampered with."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from commands import call
from flatmin.data.generators import gaussian_samples
from flatmin.data.samples import Samples
from flatmin.theory import certificate
from flatmin.theory.certificate import Certificate, certify, read_certificate
from flatmin.theory.minimal_sharpness import minimal_sharpness
from flatmin.theory.prediction import predict

# The longest floating-point type decides how narrow a proof can be.
LONG = np.finfo(np.longdouble).eps < 1e-17


def random_data(seed: int):
    """Shapes, ranks, spreads; every third with a P* near rank one, every fifth with kinks."""
    rng = np.random.default_rng(seed)
    d, targets, n = rng.integers(2, 20), rng.integers(1, 20), rng.integers(2, 40)
    X = rng.standard_normal((n, d)) * np.logspace(0.0, -rng.uniform(0, 4), d)
    Y = rng.standard_normal((n, targets))
    if seed % 3 == 0:
        Y = Y[:, :1] * rng.standard_normal(targets) + 1e-8 * Y
    if seed % 5 == 0:
        X = np.sqrt(d) * np.diag(np.logspace(0.0, -2.0, d))
        Y = X @ np.diag(np.logspace(-1.0, 2.0, d))[:, -targets:]
    data = Samples.from_arrays(X, Y[:, 0] if Y.shape[1] == 1 else Y).regression()
    return data, int(rng.integers(1, 25)), 2.5 if data.targets == 1 else 1.0


@pytest.mark.parametrize("seed", range(60))
def test_both_ends_meet_around_the_value(seed):
    data, depth, norm = random_data(seed)
    found = certify(data, depth, norm)
    assert found.verify()
    assert found.width < (1e-12 if LONG else 1e-8)
    least = minimal_sharpness(data, depth, norm).exact
    assert found.lower * (1 - 1e-13) <= least <= found.upper * (1 + 1e-13)


def exact_ends(found: Certificate) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Both ends at 50 digits: the largest eigenvalue by mpmath."""
    with mpmath.workdps(50):
        factor, product = (mpmath.matrix(a.tolist()) for a in (found.factor, found.product))
        x, t, depth = mpmath.matrix(found.x.tolist()), mpmath.mpf(found.t), found.depth
        p2, seen = mpmath.mpf(found.output_norm) ** 2, product * factor.T
        rho = (p2 / t) ** (mpmath.mpf(1) / (depth - 1))
        matrix = t * factor * factor.T + (depth - 1) * rho * (seen.T * seen)
        upper = 2 * max(mpmath.eigsy(matrix, eigvals_only=True))
        strong = p2 * mpmath.norm(factor.T * x) ** 2
        along = strong ** (mpmath.mpf(1) / depth) * mpmath.norm(seen * x) ** (
            2 - mpmath.mpf(2) / depth
        )
        return 2 * depth * along / mpmath.norm(x) ** 2, upper


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 10, 13])
def test_the_ends_are_on_the_right_side_in_fifty_digits(seed):
    data, depth, norm = random_data(seed)
    found = certify(data, max(depth, 2), norm)
    lower, upper = exact_ends(found)
    with mpmath.workdps(50):
        assert found.lower <= lower <= upper * (1 + mpmath.mpf("1e-45"))
        assert upper <= found.upper
        assert (found.upper - upper) / upper < (1e-12 if LONG else 1e-8)


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_what_is_false_is_not_proved(seed):
    """Ends a little on the wrong side of the true ones, and every kind of tampering."""
    data, depth, norm = random_data(seed)
    found = certify(data, max(depth, 2), norm)
    lower, upper = (float(end) for end in exact_ends(found))
    assert not replace(found, lower=lower * (1 + 1e-15)).proves_lower()
    assert not replace(found, upper=upper * (1 - 1e-15)).proves_upper()
    other = found.x.copy()
    other[0] += 0.01 if other[0] >= 0 else -0.01
    assert not replace(found, t=1.001 * found.t).verify()
    assert not replace(found, x=other).verify()
    assert not replace(found, depth=found.depth + 1).verify()
    for factor in (1 - 1e-11, 1 + 1e-11):
        assert not replace(found, factor=factor * found.factor).verify()
        assert not replace(found, product=factor * found.product).verify()
    for nothing in (np.zeros_like(found.x), np.full_like(found.x, 1e-320)):
        assert not replace(found, x=nothing, lower=5e-324, upper=1e-300).verify()
    assert not replace(found, t=5e-324).proves_upper()
    assert not replace(found, factor=1e300 * found.factor, t=1e300).proves_upper()


def test_a_regressor_that_misses_the_top_of_sigma():
    X = np.sqrt(3.0) * np.diag([3.0, 1.0, 0.5])
    product = np.array([[0.0, 0.0], [1.0, 0.2], [0.3, 2.0]])
    for targets in (product, product[:, 0]):
        data = Samples.from_arrays(X, X @ targets).regression()
        for depth in (1, 2, 5):
            found = certify(data, depth)
            assert found.verify()
            assert found.width < (1e-13 if LONG else 1e-10)


@pytest.mark.parametrize("depth", [2, 200])
def test_large_and_ill_conditioned(depth):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 120)) * np.logspace(0.0, -4.0, 120)
    data = Samples.from_arrays(X, X @ rng.standard_normal((120, 40))).regression()
    assert data.condition_number > 1e8
    found = certify(data, depth)
    assert found.verify()
    assert found.width < (1e-12 if LONG else 1e-8)


def test_arithmetic_in_whole_numbers_is_exact():
    values = np.array([0.1, -3.0, 0.0, 1e-300, 2.0**-1074, 1e17])
    numbers, exponent = certificate._whole(values)
    for value, number in zip(values.tolist(), numbers.tolist(), strict=True):
        assert Fraction(value) == number * Fraction(2) ** exponent


@pytest.fixture
def table(tmp_path):
    samples = gaussian_samples(20, 3, seed=0, targets=2)
    path = tmp_path / "two.npz"
    np.savez(path, X=samples.X, Y=samples.y)
    return path, samples.regression()


def test_the_commands(monkeypatch, capsys, tmp_path, table):
    file = tmp_path / "new" / "proof.json"
    options = ("--target", "Y", "--depth", "4", "--no-measure", "--certificate", file)
    code, out, err = call(monkeypatch, capsys, "predict", table[0], *options)
    assert (code, err) == (0, "")
    assert f"certificate: {file}" in out
    found = read_certificate(file)
    least = minimal_sharpness(table[1], 4).exact
    code, out, err = call(monkeypatch, capsys, "verify", file)
    assert (code, err) == (0, "")
    assert out.startswith(f"proved: {found.lower!r} <= S_min <= {found.upper!r} at depth 4")
    assert len(out.splitlines()) == 1
    assert found.lower == pytest.approx(least, rel=1e-12)
    content = json.loads(file.read_text())
    for key, value, words in (
        ("lower", found.upper, "not proved, lower end: "),
        ("upper", found.lower, "not proved, upper end: "),
        ("t", 2.0 * found.t, "not proved, upper end: "),
        ("depth", 3, "not proved, lower end: "),
    ):
        file.write_text(json.dumps(content | {key: value}))
        code, out, err = call(monkeypatch, capsys, "verify", file)
        assert (code, err) == (1, "")
        assert out.startswith(words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "expected format 'flatmin certificate 1'"),
        ({"t": -1.0}, "t must be a positive number, got -1.0"),
        ({"t": "1"}, "t must be a positive number, got '1'"),
        ({"upper": float("nan")}, "upper must be a positive number, got nan"),
        ({"depth": 0}, "depth must be"),
        ({"depth": None}, "depth must be"),
        ({"x": [1.0]}, "do not fit"),
        ({"x": [1.0, "a"]}, "x must be finite numbers"),
        ({"factor": [[1.0, 2.0], [3.0]]}, "factor must be finite numbers"),
        ({"output_norm": 2.0}, "output_norm must be 1 for several targets"),
    ],
)
def test_bad_files(monkeypatch, capsys, tmp_path, table, change, words):
    file = tmp_path / "proof.json"
    certify(table[1], 4).write(file)
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    code, out, err = call(monkeypatch, capsys, "verify", file)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_files_that_are_none(monkeypatch, capsys, tmp_path):
    file = tmp_path / "proof.json"
    for content in (None, b"", b"[1, 2]", b"\xff\xfe", b"{"):
        if content is not None:
            file.write_bytes(content)
        code, _, err = call(monkeypatch, capsys, "verify", file)
        assert code == 2
        assert "proof.json" in err


def test_a_prediction_verifies_itself():
    for targets in (1, 3):
        data = gaussian_samples(30, 4, seed=1, targets=targets).regression()
        found = predict(data, 5)
        assert found.verify()
        assert found.certificate.lower <= found.exact * (1 + 1e-12)
    # Another value under the same proof is not verified.
    wrong = replace(found, minimal=replace(found.minimal, exact=1.001 * found.exact))
    assert not wrong.verify()


def test_narrow_layers_are_named_with_their_bound():
    data = gaussian_samples(30, 4, seed=1, targets=3).regression()
    found = predict(data, 4)
    one, two, three = (found.least_of_width(width) for width in (1, 2, 3))
    assert one <= two <= three == found.exact
    (note,) = [line for line in found.notes() if line.startswith("several targets")]
    assert f"at least {one:.4g} with 1 and {two:.4g} with 2" in note
