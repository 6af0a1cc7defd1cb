"""The JAX twin, against jax.hessian."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import flatmin.jax as probes
from flatmin.core.errors import DataError, SettingError
from flatmin.probes import measure
from flatmin.probes.jax_model import JaxModel

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((30, 4)).astype("f4"), RNG.standard_normal((30, 2)).astype("f4")
TREE = {
    "in": {"w": RNG.standard_normal((4, 6)).astype("f4"), "b": np.zeros(6, "f4")},
    "out": {"w": RNG.standard_normal((6, 2)).astype("f4")},
}
BATCHES = [(X[:20], Y[:20]), (X[20:], Y[20:])]


def loss(tree, batch):
    x, y = batch
    hidden = jnp.tanh(x @ tree["in"]["w"] + tree["in"]["b"])
    return jnp.mean((hidden @ tree["out"]["w"] - y) ** 2)


def dense(tree=TREE, function=loss):
    flat, back = ravel_pytree(tree)
    return np.asarray(jax.hessian(lambda w: function(back(w), (X, Y)))(flat), float)


def test_all_probes_agree_with_the_dense_hessian():
    hessian = dense()
    truth = np.linalg.eigvalsh(hessian)
    found = probes.sharpness(loss, TREE, BATCHES)
    assert found.low <= truth[-1] <= found.high
    assert found.narrow
    ends = probes.spectrum(loss, TREE, BATCHES, 2, tolerance=1e-4)
    np.testing.assert_allclose(ends.top, truth[::-1][:2], rtol=1e-3)
    np.testing.assert_allclose(ends.bottom, truth[:2], atol=1e-3)
    trace = probes.trace(loss, TREE, BATCHES, vectors=100)
    assert abs(trace.value - truth.sum()) <= 5 * trace.standard_error
    share, error = probes.density(loss, TREE, BATCHES).above(1.0)
    assert abs(share - np.mean(truth > 1.0)) <= 5 * error
    ones = probes.along(loss, TREE, BATCHES, jax.tree.map(jnp.ones_like, TREE))
    assert ones.curvature == pytest.approx(hessian.mean() * len(hessian), rel=1e-4)


def test_layers_are_diagonal_blocks():
    found = probes.per_layer(loss, TREE, BATCHES)
    for name, block in TREE.items():
        truth = np.linalg.eigvalsh(
            dense(block, lambda one, batch, n=name: loss({**TREE, n: one}, batch))
        )
        assert found[name].low <= truth[-1] <= found[name].high


def output(tree, x):
    return jnp.tanh(x @ tree["in"]["w"] + tree["in"]["b"]) @ tree["out"]["w"]


def squares(out, y):
    return jnp.mean((out - y) ** 2)


@pytest.mark.parametrize("wide", [False, True])
def test_gauss_newton_and_chunks_in_both_precisions(wide):
    """J'J 2/outputs/n of squares, by a dense Jacobian; the Hessian in pieces of 7."""
    with jax.enable_x64(wide):
        tree = jax.tree.map(lambda one: jnp.asarray(one, float), TREE)
        batches = [tuple(jnp.asarray(one, float) for one in batch) for batch in BATCHES]
        flat, back = ravel_pytree(tree)
        room = 1e3 * np.finfo(flat.dtype).eps
        assert flat.dtype == (jnp.float64 if wide else jnp.float32)
        whole = lambda w: output(back(w), jnp.asarray(X, float)).ravel()  # noqa: E731
        jacobian = np.asarray(jax.jacobian(whole)(flat), float)
        hessian = jax.hessian(lambda w: jnp.mean((whole(w) - jnp.asarray(Y, float).ravel()) ** 2))
        newton = 2.0 * jacobian.T @ jacobian / len(jacobian)
        for kind, truth in (("Hessian", np.asarray(hessian(flat))), ("Gauss-Newton", newton)):
            operator = JaxModel(squares, tree, batches, output, kind, chunk=7)
            for v in (operator.gaussian(0), operator.gaussian(1)):
                pairs = zip(operator.shares, operator.parts(v), strict=True)
                found = sum(share * part for share, part in pairs)
                size = np.linalg.norm(truth, 2) * np.linalg.norm(v)
                np.testing.assert_allclose(found, truth @ np.asarray(v), rtol=0, atol=room * size)
            record = measure.largest(operator, tolerance=1e-3)
            top = np.linalg.eigvalsh(truth.astype(float))[-1]
            assert record.low - room * top <= top <= record.high + room * top
            assert record.narrow


def test_layers_of_gauss_newton():
    jacobian = jax.jacobian(lambda w: output({**TREE, "out": {"w": w}}, X).ravel())
    columns = np.asarray(jacobian(TREE["out"]["w"]), float).reshape(len(X) * 2, -1)
    found = probes.per_layer(squares, TREE, (X, Y), model=output, matrix="Gauss-Newton")["out"]
    assert found.value == pytest.approx(
        2 * np.linalg.norm(columns, 2) ** 2 / len(columns), rel=1e-2
    )
    assert found.matrix == "Gauss-Newton"


def test_reverse_over_reverse_where_forward_is_missing():
    @jax.custom_vjp
    def tanh(x):
        return jnp.tanh(x)

    tanh.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * (1 - jnp.tanh(x) ** 2),))

    def other(tree, batch):
        x, y = batch
        return jnp.mean((tanh(x @ tree["in"]["w"] + tree["in"]["b"]) @ tree["out"]["w"] - y) ** 2)

    found = probes.sharpness(other, TREE, BATCHES)
    assert found.low <= np.linalg.eigvalsh(dense())[-1] <= found.high


def test_finite_differences_where_a_second_derivative_is_missing():
    """A backward pass that leaves JAX: like a kernel of one's own."""

    def slope(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda one: 1 - np.tanh(np.asarray(one)) ** 2, shape, x)

    @jax.custom_vjp
    def tanh(x):
        return jnp.tanh(x)

    tanh.defvjp(lambda x: (jnp.tanh(x), x), lambda x, g: (g * slope(x),))

    def other(tree, batch):
        x, y = batch
        return jnp.mean((tanh(x @ tree["in"]["w"] + tree["in"]["b"]) @ tree["out"]["w"] - y) ** 2)

    found = probes.sharpness(other, TREE, BATCHES)
    assert found.how == "finite differences"
    assert found.low <= np.linalg.eigvalsh(dense())[-1] <= found.high
    assert found.value == pytest.approx(np.linalg.eigvalsh(dense())[-1], rel=1e-2)


def test_bad_input():
    with pytest.raises(SettingError, match=r"one number, got shape \(20, 2\)"):
        probes.sharpness(lambda t, b: b[0][:, :2] * t["out"]["w"][0], TREE, BATCHES)
    with pytest.raises(SettingError, match="loss must be a function, got None"):
        probes.sharpness(None, TREE, BATCHES)
    with pytest.raises(DataError, match="batch 2 of 2 holds values"):
        probes.sharpness(loss, TREE, [BATCHES[0], (X * np.nan, Y)])
    with pytest.raises(SettingError, match=r"parameter \['n'\] is of type int32"):
        probes.sharpness(loss, {"n": jnp.arange(3)}, BATCHES)
    with pytest.raises(SettingError, match="not the mean of that of its chunks"):
        probes.sharpness(lambda t, b: len(b[0]) * loss(t, b), TREE, BATCHES, chunk=7)
    with pytest.raises(SettingError, match="'Gauss-Newton' needs the model as a function"):
        probes.sharpness(loss, TREE, BATCHES, matrix="Gauss-Newton")
    with pytest.raises(SettingError, match="dictionary with an entry a layer, got list"):
        probes.per_layer(loss, [TREE], BATCHES)
