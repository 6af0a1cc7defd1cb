"""What `flatmin.torch` finds, against dense Hessians."""

from __future__ import annotations

import copy
from collections import UserDict, namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import flatmin.torch as probes
from flatmin.core.errors import SettingError
from flatmin.probes.torch_model import TorchModel
from flatmin.probes.torch_pieces import Sketch
from flatmin.probes.torch_products import WAYS
from probes.models import CASES, case, dense

LOSS = nn.CrossEntropyLoss()


def matrix(operator: TorchModel) -> torch.Tensor:
    columns = []
    for unit in torch.eye(operator.size, dtype=torch.float64):
        parts = operator.parts(unit)
        columns.append(
            sum(share * part for share, part in zip(operator.shares, parts, strict=True))
        )
    return torch.stack(columns)


@pytest.mark.parametrize("name", CASES)
def test_the_interval_holds_the_largest_eigenvalue(name):
    model, x, y = case(name)
    batches = [(x[:15], y[:15]), (x[15:], y[15:])]  # unequal: weighted by their sizes
    truth = float(torch.linalg.eigvalsh(dense(model, LOSS, batches))[-1])
    found = probes.sharpness(model, LOSS, batches)
    assert found.low <= truth <= found.high
    assert found.narrow
    assert found.value == pytest.approx(truth, rel=1e-2)
    assert found.data_error > 0
    again = probes.sharpness(model, LOSS, batches, start=found.vector, seed=1)
    assert again.low <= truth <= again.high


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["mlp", "batch norm", "convolution"])
def test_all_ways_give_the_same_matrix(name, way):
    model, x, y = case(name)
    batches = [(x[:15], y[:15]), (x[15:], y[15:])]
    operator = TorchModel(model, LOSS, batches, how=way)
    # Central differences are off by precision^(2/3); the others by rounding.
    room = 1e-6 if way == "finite differences" else 1e-12
    torch.testing.assert_close(matrix(operator), dense(model, LOSS, batches), rtol=0, atol=room)
    assert operator.how == way


class OnceBackward(torch.autograd.Function):
    """A square whose backward cannot be differentiated: like fused attention."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class Square(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layers, self.function = nn.ModuleList([nn.Linear(6, 8), nn.Linear(8, 3)]), function

    def forward(self, x):
        return self.layers[1](self.function(self.layers[0](x)))


def test_a_way_is_chosen_that_the_model_can_go():
    torch.manual_seed(0)
    plain, once = Square(torch.square).double(), Square(OnceBackward.apply).double()
    once.load_state_dict(plain.state_dict())
    batch = torch.randn(20, 6).double(), torch.randint(0, 3, (20,))
    found = probes.sharpness(once, LOSS, batch)
    truth = probes.sharpness(plain, LOSS, batch, tolerance=1e-6)
    assert found.how == "finite differences"
    assert truth.how == "forward over reverse"
    assert found.low <= truth.value <= found.high


def test_chunks_change_nothing_but_the_memory():
    model, x, y = case("transformer")
    whole, cut = TorchModel(model, LOSS, (x, y)), TorchModel(model, LOSS, (x, y), chunk=5)
    for seed in range(3):
        v = whole.gaussian(seed)
        torch.testing.assert_close(next(cut.parts(v)), next(whole.parts(v)))


def wide(norm: nn.Module) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A convolutional network that keeps more than 4 MB for its backward pass."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3), norm, nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(16 * 144, 3))
    return model, torch.randn(320, 1, 16, 16), torch.randint(0, 3, (320,))


def peak(work) -> int:
    """The largest number of bytes that PyTorch held at once, beyond those before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as watch:
        work()
    changes = [e.nbytes() for e in watch.profiler.kineto_results.events() if e.name() == "[memory]"]
    return int(np.cumsum(changes).max())


def over_a_step(model, x, y, **settings):
    """Memory of a measurement but for the vectors kept, over that of a step; and its record."""
    step = peak(lambda: LOSS(model(x), y).backward())
    model.zero_grad()
    records = []
    found = peak(
        lambda: records.append(probes.sharpness(model, LOSS, (x, y), budget=3, **settings))
    )
    return (found - records[0].memory) / step, records[0]


def test_memory_is_that_of_a_training_step():
    model, x, y = wide(nn.Identity())
    over, record = over_a_step(model, x, y)
    assert peak(lambda: LOSS(model(x), y).backward()) > 4e6
    assert record.data == "320 samples in 1 batch, 40 at a time"
    assert over <= 1.2


def heavy() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A network whose weights are many more than its activations."""
    torch.manual_seed(0)
    layers = [part for _ in range(12) for part in (nn.Linear(256, 256), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(256, 3))
    return model, torch.randn(16, 256), torch.randint(0, 3, (16,))


@pytest.mark.parametrize("matrix", ["Hessian", "Gauss-Newton"])
def test_vectors_are_not_copied_where_weights_are_many(matrix):
    model, x, y = heavy()
    over, _ = over_a_step(model, x, y, matrix=matrix)
    assert over <= 1.2


def test_gauss_newton_takes_the_memory_of_a_step():
    torch.manual_seed(0)
    layers = [part for _ in range(8) for part in (nn.Linear(32, 32), nn.ReLU())]
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), *layers, nn.Linear(32, 3))
    x, y = torch.randn(4000, 16), torch.randint(0, 3, (4000,))
    over, record = over_a_step(model, x, y, matrix="Gauss-Newton")
    assert record.how == "forward over reverse"
    assert over <= 1.2


def test_squared_errors_go_forward_too():
    """PyTorch's own have no forward derivative of second order."""
    model, x, _ = case("mlp")
    y = torch.randn(len(x), 3).double()
    for loss in (nn.MSELoss(), nn.MSELoss(reduction="sum")):
        operator = TorchModel(model, loss, (x, y), how="forward over reverse")
        truth = dense(model, loss, [(x, y)]) if loss.reduction == "mean" else None
        if truth is None:
            truth = dense(model, nn.MSELoss(), [(x, y)]) * y.numel()
        torch.testing.assert_close(matrix(operator), truth, rtol=0, atol=1e-10)
        newton = probes.sharpness(model, loss, (x, y), matrix="Gauss-Newton")
        assert newton.narrow


def test_sums_and_dropout_can_be_cut_too():
    model, x, y = case("mlp")
    total = nn.CrossEntropyLoss(reduction="sum")
    found = probes.sharpness(model, total, (x, y), chunk=5, tolerance=1e-6)
    assert found.value == pytest.approx(
        len(x) * probes.sharpness(model, LOSS, (x, y), tolerance=1e-6).value, rel=1e-5
    )
    dropping, x, y = wide(nn.Dropout(0.5))
    found = probes.sharpness(dropping, LOSS, (x, y), budget=4)
    assert found.data == "320 samples in 1 batch, 40 at a time"
    assert dropping[1].p == 0.5
    assert found.low <= probes.sharpness(dropping, LOSS, (x, y), seed=1).high  # one matrix


def test_where_memory_is_short_gradients_are_enough(monkeypatch):
    def short(*_):
        raise torch.OutOfMemoryError("no room")

    model, x, y = case("batch norm")
    truth = probes.sharpness(model, LOSS, (x, y), tolerance=1e-6).value
    for way in ("forward over reverse", "reverse over reverse"):
        monkeypatch.setitem(WAYS, way, short)
    found = probes.sharpness(model, LOSS, (x, y))
    assert found.how == "finite differences"
    assert found.low <= truth <= found.high


LAYERS = {
    "ReLU": nn.ReLU,
    "ReLU in place": lambda: nn.ReLU(inplace=True),
    "ReLU6": nn.ReLU6,
    "leaky ReLU": lambda: nn.LeakyReLU(0.1),
    "GELU": nn.GELU,
}


@pytest.mark.parametrize("name", LAYERS)
def test_memory_is_that_of_a_step_where_nothing_can_be_cut(name):
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), LAYERS[name]()]
    layers += [nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)]
    model = nn.Sequential(*layers, LAYERS[name](), nn.Flatten(), nn.Linear(2048, 3))
    x, y = torch.randn(512, 1, 16, 16), torch.randint(0, 3, (512,))
    over, record = over_a_step(model, x, y)
    assert record.data == "512 samples in 1 batch, whole: its chunks differ"
    assert record.how == "finite differences"
    assert over <= 1.2


def _wide(norm, activation=nn.ReLU, width=384):
    layers = []
    for inputs in (32, *[width] * 5):
        layers += [nn.Linear(inputs, width), *([nn.BatchNorm1d(width)] if norm else [])]
        layers += [activation()]
    return nn.Sequential(*layers, nn.Linear(width, 3))


@pytest.mark.parametrize(
    ("norm", "samples", "matrix", "how"),
    [
        (False, 16, "Hessian", "reverse over reverse"),
        (True, 16, "Hessian", "reverse over reverse"),
        (True, 256, "Hessian", "finite differences"),
        (True, 256, "Gauss-Newton", "forward over reverse"),
    ],
)
def test_memory_is_that_of_a_step_where_weights_count(norm, samples, matrix, how):
    torch.manual_seed(0)
    model, x, y = _wide(norm), torch.randn(samples, 32), torch.randint(0, 3, (samples,))
    over, record = over_a_step(model, x, y, matrix=matrix)
    assert record.how == how
    assert over <= 1.2


def test_memory_of_gauss_newton_through_batch_norm():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(4096, 3))
    x, y = torch.randn(64, 1, 16, 16), torch.randint(0, 3, (64,))
    over, _ = over_a_step(model, x, y, matrix="Gauss-Newton")
    assert over <= 1.2


@pytest.mark.parametrize("way", ["reverse over reverse", "finite differences"])
def test_groups_of_parameters_change_no_product(way):
    torch.manual_seed(0)
    model, x = _wide(True, nn.GELU, 8).double(), torch.randn(40, 32).double()
    y = torch.randint(0, 3, (40,))
    whole, grouped = (TorchModel(model, LOSS, (x, y), how=way) for _ in range(2))
    grouped._call.waiting = grouped._call.moved = 2000.0
    v = whole.gaussian(1)
    truth = dense(model, LOSS, [(x, y)]) @ v
    for one in (whole, grouped):
        off = (next(one.parts(v)) - truth).norm() / truth.norm()
        assert off <= (1e-6 if way == "finite differences" else 1e-12)


@pytest.mark.parametrize("size", [5, 1024, 70_000, 300_000])
def test_a_sketch_has_the_norm_of_its_vector(size):
    """Within five standard deviations, for vectors of all kinds; it is linear in them."""
    torch.manual_seed(size)
    draws = [torch.randn(size), torch.ones(size), torch.arange(size) % 7 - 3.0, torch.zeros(size)]
    draws[3][size // 2] = -2.0
    sketches = []
    for one in draws:
        names = {"a": slice(0, size // 3), "b": slice(size // 3, size)}
        v = {name: torch.ones_like(one[place]) for name, place in names.items()}
        sketch = Sketch(v, {name: one[place] for name, place in names.items()})
        for name, place in names.items():
            sketch.add(name, one[place])
        found = sketch.glance
        sketches.append(found.sketch)
        assert np.linalg.norm(found.sketch) == pytest.approx(float(one.norm()), rel=5 / 2048**0.5)
        assert found.along == pytest.approx(float(one.double().sum()), rel=1e-9, abs=1e-9)
        assert found.side == pytest.approx(float(one.double() @ one.double()), rel=1e-9)
    gap = np.linalg.norm(sketches[0] - sketches[1])
    assert gap == pytest.approx(float((draws[0] - draws[1]).norm()), rel=5 / 2048**0.5)


def test_what_spares_memory_is_left_where_it_is_too_coarse(monkeypatch):
    """In single precision differences reach 1 %, and not 0.017 %."""
    monkeypatch.setattr("flatmin.probes.torch_model.LARGE", 1.0)
    model, x, y = case("batch norm", samples=200, double=False)
    truth = float(torch.linalg.eigvalsh(dense(model.double(), LOSS, [(x.double(), y)]))[-1])
    model.float()
    for tolerance, way in ((1e-2, "finite differences"), (1.7e-4, "forward over reverse")):
        found = probes.sharpness(model, LOSS, (x, y), tolerance=tolerance)
        assert found.how == way
        assert found.narrow
        assert found.low <= truth <= found.high
        both = probes.spectrum(model, LOSS, (x, y), 1, tolerance=tolerance)
        assert both.how == way
        assert abs(both.top[0] - truth) <= both.top_residuals[0]
    # Where no derivative of second order is to be had, the coarse ones are what there is.
    once = nn.Sequential(nn.BatchNorm1d(6), Square(OnceBackward.apply))
    found = probes.sharpness(once, LOSS, (x, y), tolerance=1e-6)
    assert found.how == "finite differences"
    assert not found.narrow
    short = probes.sharpness(model, LOSS, (x, y), tolerance=1e-6, budget=found.products - 1)
    assert short.low <= truth <= short.high


class Kinks(nn.Module):
    """All kinks that are held, in all their spellings."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.maxima, self.means = nn.Linear(30, 3), nn.Linear(6, 3)

    def forward(self, x):
        z = self.norm(self.first(x))
        x = nn.functional.relu6(3 * z) + torch.relu(z - 0.1) + (z + 0.1).relu()
        x = x + nn.functional.hardtanh(z, -0.5, 0.5) + nn.functional.leaky_relu(z + 0.2, 0.3)
        y = z + 0.3
        y.relu_()  # its value is not used
        x = x + torch.relu_(z - 0.4) + nn.functional.relu(z + 0.4) - y
        means = self.means((x**2).mean((2, 3)))
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        x = nn.functional.adaptive_max_pool2d(x, (5, 2))
        x = nn.functional.max_pool1d(x.flatten(2), kernel_size=2)
        places = nn.functional.max_pool1d(x, 1, return_indices=True)[1]
        return self.maxima(x.flatten(1)) + means + 0 * places.sum()


def test_kinks_are_held_where_they_are():
    """In single precision, where the steps of differences cross many."""
    torch.manual_seed(0)
    model, x, y = Kinks(), torch.randn(50, 1, 13, 13), torch.randint(0, 3, (50,))
    exact = "forward over reverse"
    double = TorchModel(copy.deepcopy(model).double(), LOSS, (x.double(), y), how=exact)
    single = TorchModel(model, LOSS, (x, y), how="finite differences")
    for seed in range(3):
        v = single.gaussian(seed)
        truth = next(double.parts(v.double()))
        off = (next(single.parts(v)) - truth).norm() / truth.norm()
        assert off <= 2.5e-4
    assert double.how == exact
    assert not model.norm.running_mean.any()


def test_finite_differences_know_how_far_they_are_off():
    """In single precision, with a direction in which the loss bends more than in random ones."""
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.GELU()]
    layers += [nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Linear(64, 3)]
    model = nn.Sequential(*layers)
    x, y = torch.randn(512, 16), torch.randint(0, 3, (512,))
    exact = probes.sharpness(model, LOSS, (x, y), tolerance=1e-4)
    for seed in range(3):
        found = probes.sharpness(model, LOSS, (x, y), seed=seed, how="finite differences")
        assert found.low <= exact.high
        assert found.high >= exact.low
        assert found.high - found.low <= 0.05 * exact.value


@pytest.mark.parametrize("name", CASES)
def test_forward_over_reverse_comes_first(name):
    model, x, y = case(name)
    assert probes.sharpness(model, LOSS, (x, y), budget=2).how == "forward over reverse"


def test_a_way_can_be_chosen():
    model, x, y = case("batch norm")
    truth = float(torch.linalg.eigvalsh(dense(model, LOSS, [(x, y)]))[-1])
    for way in WAYS:
        found = probes.sharpness(model, LOSS, (x, y), how=way)
        assert found.how == way
        assert found.low <= truth <= found.high
    with pytest.raises(SettingError, match="how must be one of forward over reverse, reverse over"):
        probes.sharpness(model, LOSS, (x, y), how="backprop")


def test_a_budget_that_ends_first_leaves_a_wide_interval():
    model, x, y = case("mlp")
    truth = float(torch.linalg.eigvalsh(dense(model, LOSS, [(x, y)]))[-1])
    widths = []
    for budget in (1, 2, 4, 8):
        found = probes.sharpness(model, LOSS, (x, y), budget=budget, tolerance=1e-8)
        assert found.products == budget
        assert not found.narrow
        assert "WIDER" in str(found)
        assert found.low <= truth <= found.high
        widths.append(found.high - found.low)
    assert widths == sorted(widths, reverse=True)


def test_single_precision_covers_too():
    for seed in range(10):
        model, x, y = case("batch norm", seed, double=False)
        truth = dense(model.double(), LOSS, [(x.double(), y)])
        found = probes.sharpness(model.float(), LOSS, (x, y), seed=seed, tolerance=1e-4)
        assert found.low <= float(torch.linalg.eigvalsh(truth)[-1]) <= found.high


def test_the_spectrums_ends_and_its_bounds():
    model, x, y = case("convolution")
    truth = torch.linalg.eigvalsh(dense(model, LOSS, [(x, y)])).numpy()
    found = probes.spectrum(model, LOSS, (x, y), 3, tolerance=1e-6)
    assert found.converged
    np.testing.assert_allclose(found.top, truth[::-1][:3], atol=1e-6 * truth[-1])
    np.testing.assert_allclose(found.bottom, truth[:3], atol=1e-6 * truth[-1])
    assert found.low <= truth[0]
    assert truth[-1] <= found.high


def test_trace_and_density_agree_within_their_errors():
    model, x, y = case("mlp")
    truth = torch.linalg.eigvalsh(dense(model, LOSS, [(x, y)])).numpy()
    trace = probes.trace(model, LOSS, (x, y), vectors=60)
    assert abs(trace.value - truth.sum()) <= 5 * trace.standard_error
    assert trace.standard_error <= 0.4 * truth.sum()
    density = probes.density(model, LOSS, (x, y), vectors=12, steps=30)
    share, error = density.above(0.05)
    assert abs(share - np.mean(truth > 0.05)) <= 5 * error
    grid = np.linspace(-1, 2 * truth[-1], 4000)
    width = 0.05
    smooth = (
        np.exp(-0.5 * ((grid[:, None] - truth) / width) ** 2).mean(1) / width / np.sqrt(2 * np.pi)
    )
    value, error = density.at(grid, width)
    assert np.all(np.abs(value - smooth) <= 6 * error + 1e-9)
    assert np.trapezoid(value, grid) == pytest.approx(1, abs=1e-6)


def test_the_error_over_batches_is_a_jackknifes():
    """Against leaving out each batch in turn, of dense Hessians; it is the first order of that."""
    model, x, y = case("mlp", samples=240)
    batches = list(zip(x.split(20), y.split(20), strict=True))
    parts = torch.stack([dense(model, LOSS, [one]) for one in batches])
    count = len(batches)
    tops = [float(torch.linalg.eigvalsh((parts.sum(0) - one) / (count - 1))[-1]) for one in parts]
    truth = np.sqrt((count - 1) ** 2 / count * np.var(tops, ddof=1))
    found = probes.sharpness(model, LOSS, batches)
    assert found.data_error == pytest.approx(truth, rel=0.15)
    low, high = found.other_samples
    assert (high - low) / found.data_error == pytest.approx(2 * 2.20098516, rel=1e-6)  # Student, 11
    assert f"other samples: {low:.4g} to {high:.4g}" in str(found)
    assert "unknown from one batch" in str(probes.sharpness(model, LOSS, (x, y)))


def test_along_a_direction_and_the_gradient():
    model, x, y = case("mlp")
    batches = [(x[:15], y[:15]), (x[15:], y[15:])]
    hessian = dense(model, LOSS, batches)
    loss = sum(len(b) * LOSS(model(a), b) for a, b in batches) / len(x)
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, model.parameters())])
    found = probes.along(model, LOSS, batches)
    assert found.slope == pytest.approx(float(gradient.norm()), rel=1e-10)
    unit = gradient / gradient.norm()
    assert found.curvature == pytest.approx(float(unit @ hessian @ unit), rel=1e-10)
    direction = torch.arange(1.0, len(hessian) + 1).double()
    parts = direction.split([one.numel() for one in model.parameters()])
    shaped = [part.reshape(one.shape) for part, one in zip(parts, model.parameters(), strict=True)]
    named = dict(zip(dict(model.named_parameters()), shaped, strict=True))
    expected = float(direction @ hessian @ direction / direction.square().sum())
    for given in (direction, shaped, named, dict(reversed(named.items()))):
        curvature = probes.along(model, LOSS, batches, given).curvature
        assert curvature == pytest.approx(expected, rel=1e-10)


def test_layers_are_diagonal_blocks():
    model, x, y = case("transformer")
    hessian = dense(model, LOSS, [(x, y)])
    found = probes.per_layer(model, LOSS, (x, y), tolerance=1e-6)
    place = 0
    owners: dict[str, list[int]] = {}
    for name, one in model.named_parameters():
        owners.setdefault(name.rpartition(".")[0], []).extend(range(place, place + one.numel()))
        place += one.numel()
    assert set(found) == set(owners)
    for name, rows in owners.items():
        block = hessian[rows][:, rows]
        truth = torch.linalg.eigvalsh(block)[-1]
        assert found[name].value == pytest.approx(float(truth), rel=1e-5, abs=1e-9), name


def test_gauss_newton_is_j_prime_b_j():
    model, x, y = case("mlp")
    outputs = lambda *w: torch.func.functional_call(model, dict(zip(names, w, strict=True)), (x,))  # noqa: E731
    names, values = zip(*model.named_parameters(), strict=True)
    parts = torch.autograd.functional.jacobian(outputs, tuple(v.detach() for v in values))
    jacobian = torch.cat([one.reshape(len(x) * 3, -1) for one in parts], dim=1)
    inner = torch.autograd.functional.hessian(lambda o: LOSS(o, y), model(x).detach())
    truth = jacobian.T @ inner.reshape(len(x) * 3, -1) @ jacobian
    operator = TorchModel(model, LOSS, (x, y), matrix="Gauss-Newton")
    torch.testing.assert_close(matrix(operator), truth, rtol=0, atol=1e-12)


class Recurrent(nn.Module):
    """Forward mode is missing for it."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.LSTM(6, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.inner(x)[0][:, -1])


def test_gauss_newton_without_forward_mode():
    torch.manual_seed(0)
    model, x, y = Recurrent(), torch.randn(10, 3, 6), torch.randint(0, 3, (10,))
    found = probes.sharpness(model, LOSS, (x, y), matrix="Gauss-Newton", tolerance=1e-4)
    assert found.how == "reverse over reverse"
    outputs = model(x)
    rows = [
        torch.cat(
            [g.reshape(-1) for g in torch.autograd.grad(one, model.parameters(), retain_graph=True)]
        )
        for one in outputs.reshape(-1)
    ]
    inner = torch.autograd.functional.hessian(lambda o: LOSS(o, y), outputs.detach())
    jacobian, inner = torch.stack(rows).double(), inner.reshape(30, 30).double()
    truth = torch.linalg.eigvals(inner @ (jacobian @ jacobian.T)).real.max()
    assert found.low <= float(truth) <= found.high


class Shared(nn.Module):
    """Input and output letters have one matrix."""

    def __init__(self):
        super().__init__()
        self.letters, self.out = nn.Embedding(6, 3, sparse=True), nn.Linear(3, 6, bias=False)
        self.out.weight = self.letters.weight

    def forward(self, x):
        return self.out(torch.tanh(self.letters(x)))


def test_models_as_people_wrap_them():
    model, x, y = case("mlp")
    plain = probes.sharpness(model, LOSS, (x, y))
    for wrapped in (nn.DataParallel(model), torch.compile(model, backend="eager")):
        assert probes.sharpness(wrapped, LOSS, (x, y)).value == pytest.approx(plain.value)
    names = {"module.0", "module.2"}
    assert set(probes.per_layer(nn.DataParallel(model), LOSS, (x, y))) == names
    with torch.autocast("cpu", dtype=torch.bfloat16):  # in the middle of a training
        assert probes.sharpness(model.float(), LOSS, (x.float(), y)).value == pytest.approx(
            plain.value, rel=1e-2
        )


def test_a_matrix_that_two_layers_share_counts_once():
    torch.manual_seed(0)
    model, x = Shared().double(), torch.arange(6)
    found = probes.sharpness(model, LOSS, (x, (x + 1) % 6))
    both = lambda w: LOSS(torch.tanh(w[x]) @ w.T, (x + 1) % 6)  # noqa: E731
    whole = torch.autograd.functional.hessian(both, model.letters.weight.detach())
    truth = float(torch.linalg.eigvalsh(whole.reshape(18, 18))[-1])
    assert found.low <= truth <= found.high
    other = probes.sharpness(model, LOSS, (x, (x + 1) % 6), parameters=["out.weight"])
    assert other.value == pytest.approx(found.value)


def test_a_loss_that_takes_the_model_and_its_batch():
    model, x, y = case("mlp")
    pair = probes.sharpness(model, LOSS, (x, y))
    other = probes.sharpness(model, lambda m, b: LOSS(m(b["x"]), b["y"]), {"x": x, "y": y})
    assert other.value == pytest.approx(pair.value, rel=1e-12)


@dataclass(frozen=True)
class Samples:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "a"


class Encoding(UserDict):
    """Entries that are attributes too, as of tokenizers."""

    def __getattr__(self, key):
        return self.data[key]


@pytest.mark.parametrize("kind", [Samples, Encoding, namedtuple("Three", "x y z", defaults=[0])])
def test_batches_keep_their_kind(kind):
    model, x, y = case("mlp")
    pair = probes.sharpness(model, LOSS, (x, y))
    loss = lambda net, batch: LOSS(net(batch.x), batch.y)  # noqa: E731
    for chunk in (None, 5):
        found = probes.sharpness(model, loss, [kind(x=x, y=y)], chunk=chunk)
        assert found.value == pytest.approx(pair.value, rel=1e-12)


def test_a_loss_may_use_the_models_parameters():
    """A penalty of 0.1 |W|^2 adds 0.2 to every eigenvalue, wherever the loss has the model from."""
    model, x, y = case("mlp")
    plain = probes.sharpness(model, LOSS, (x, y), tolerance=1e-6).value
    penalty = lambda net: 0.1 * sum((one**2).sum() for one in net.parameters())  # noqa: E731
    for loss, batch in (
        (lambda out, target: LOSS(out, target) + penalty(model), (x, y)),
        (lambda net, b: LOSS(net(b["x"]), y) + penalty(net), {"x": x}),
        (lambda net, b: LOSS(model(b["x"]), y) + penalty(model), {"x": x}),
    ):
        for way in WAYS:
            found = probes.sharpness(model, loss, batch, tolerance=1e-6, how=way)
            assert found.value == pytest.approx(plain + 0.2, rel=1e-6)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_derivatives_are_taken_whatever_is_around(around, way):
    model, x, y = case("mlp")
    truth = probes.sharpness(model, LOSS, (x, y), how=way).value
    with around():
        found = probes.sharpness(model, LOSS, (x.clone(), y), how=way)
    assert found.value == pytest.approx(truth, rel=1e-6)


class Checkpointed(nn.Module):
    """Calls a part of itself again in the backward pass."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.out = inner, nn.Linear(8, 3).double()

    def forward(self, x):
        return self.out(checkpoint(self.inner, x, use_reentrant=False))


@pytest.mark.parametrize("way", ["reverse over reverse", "finite differences"])
def test_what_is_computed_again_has_the_same_parameters(way):
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU()).double()
    model, batch = Checkpointed(inner), case("mlp")[1:]
    plain = nn.Sequential(inner, model.out)
    operator = TorchModel(model, LOSS, batch, how=way)
    torch.testing.assert_close(matrix(operator), dense(plain, LOSS, [batch]), rtol=0, atol=1e-9)


def test_a_second_derivative_that_is_wrong_is_noticed():
    """PyTorch's of weight normalisation is not symmetric; the formula's is."""
    model, x, y = case("mlp")
    nn.utils.parametrizations.weight_norm(model[0])
    found = probes.sharpness(model, LOSS, (x, y))

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.b, pair = model[0].bias, model[0].parametrizations.weight
            self.g, self.v, self.out = pair.original0, pair.original1, model[2]

        def forward(self, x):
            weight = self.g * self.v / self.v.norm(dim=1, keepdim=True)
            return self.out(torch.tanh(x @ weight.T + self.b))

    truth = float(torch.linalg.eigvalsh(dense(Plain(), LOSS, [(x, y)]))[-1])
    assert found.how == "finite differences"
    assert found.low <= truth <= found.high


def test_a_parameter_the_loss_does_not_use_is_flat():
    model, x, y = case("mlp")
    model.extra = nn.Parameter(torch.ones(4).double())
    assert probes.sharpness(model, LOSS, (x, y), parameters=["extra"]).value == 0.0
