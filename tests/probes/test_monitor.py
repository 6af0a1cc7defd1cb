"""Gauges against optimisers that really step, and what a monitor does with its budget."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from flatmin.core.errors import DataError, SettingError
from flatmin.probes.torch_model import TorchModel
from flatmin.probes.watch import Check, Watch
from flatmin.torch import HuggingFaceMonitor, LightningMonitor, Monitor
from probes.models import dense

LOSS = nn.MSELoss()


class Bowl(nn.Module):
    """The loss w' diag(curvatures) w / 2: every optimiser here is linear in it."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64))
        self.register_buffer("curvatures", torch.tensor([1.0, 3.0, 0.5], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * (self.curvatures * self.w**2).sum() * x


BATCH = torch.ones(1, dtype=torch.float64), torch.zeros(1)
OPTIMISERS = {
    "SGD": lambda p, rate: torch.optim.SGD(p, lr=rate),
    "SGD with a penalty": lambda p, rate: torch.optim.SGD(p, lr=rate, weight_decay=0.3),
    "heavy ball": lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.8),
    "dampened": lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.8, dampening=0.4),
    "Nesterov": lambda p, rate: torch.optim.SGD(p, lr=rate, momentum=0.8, nesterov=True),
    # Second moments that stay as they are: the preconditioner is frozen.
    "Adam": lambda p, rate: torch.optim.Adam(p, lr=rate, betas=(0.8, 1 - 1e-12)),
    "AdamW": lambda p, rate: torch.optim.AdamW(
        p, lr=rate, betas=(0.8, 1 - 1e-12), weight_decay=0.5
    ),
    "RMSprop": lambda p, rate: torch.optim.RMSprop(p, lr=rate, alpha=1.0, momentum=0.5),
    "Adagrad": lambda p, rate: torch.optim.Adagrad(p, lr=rate),
}
SQUARES = torch.tensor([4.0, 0.25, 9.0], dtype=torch.float64)


def frozen(name, rate):
    """A bowl and an optimiser with a chosen preconditioner, long after its start."""
    model = Bowl()
    optimizer = OPTIMISERS[name](model.parameters(), rate)
    (model(BATCH[0]).mean() * 1e-9).backward()
    optimizer.step()
    state = optimizer.state[model.w]
    if "exp_avg_sq" in state:
        state["step"] = torch.tensor(1e15)  # corrections are over
        state["exp_avg_sq"] = SQUARES.clone()
        state["exp_avg"].zero_()
    if "square_avg" in state:
        state["square_avg"] = SQUARES.clone()
    if "sum" in state:
        state["sum"] = 1e8 * SQUARES  # nothing that comes matters beside it
    return model, optimizer


def grows(name, rate):
    """Whether 400 steps of PyTorch's own optimiser lead away from the minimum."""
    model, optimizer = frozen(name, rate)
    with torch.no_grad():
        model.w.fill_(1e-3)
    for _ in range(400):
        optimizer.zero_grad()
        model(BATCH[0]).mean().backward()
        optimizer.step()
        if float(model.w.detach().abs().max()) > 1.0:  # before preconditioners notice
            return True
    return not float(model.w.detach().abs().max()) < 1e-3


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_largest_stable_rate_is_that_of_the_optimiser(name):
    rate = 1e-2
    model, optimizer = frozen(name, rate)
    monitor = Monitor(model, lambda out, _: out.mean(), BATCH, optimizer, None, tolerance=1e-6)
    found = monitor()
    if name == "AdamW":  # its reach depends on the rate, through the decay: measured at the edge
        model, optimizer = frozen(name, found.largest_rate)
        again = Monitor(model, lambda out, _: out.mean(), BATCH, optimizer, None, tolerance=1e-6)
        for _ in range(30):
            for group in optimizer.param_groups:
                group["lr"] = again.check().largest_rate
        found = again.check()
    assert not grows(name, 0.99 * found.largest_rate)
    assert grows(name, 1.01 * found.largest_rate)


def small(seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.randn(40, 5), torch.randn(40, 2)


def test_batch_sharpness_is_the_mean_over_batches():
    model, x, y = small()
    batches = [(x[:10], y[:10]), (x[10:], y[10:])]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    check = Monitor(model, LOSS, batches, optimizer, None)()
    truth = 0.0
    for a, b in batches:
        g = torch.autograd.grad(LOSS(model(a), b), model.parameters(), create_graph=True)
        square = sum((one**2).sum() for one in g)
        bent = torch.autograd.grad(square / 2, model.parameters())  # H g
        dot = sum((u * v).sum() for u, v in zip(g, bent, strict=True))
        truth += len(a) / 40 * float((dot / square).detach())
    assert check.gauge == "batch sharpness"
    assert check.measured == pytest.approx(truth, rel=1e-4)
    assert check.edge == pytest.approx(20.0)


def test_a_new_largest_eigenvalue_is_noticed():
    model = Bowl()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, lambda out, _: out.mean(), BATCH, optimizer, None)
    assert monitor().measured == pytest.approx(3.0, rel=0.02)
    model.curvatures[2] = 7.0  # orthogonal to the vector that it begins from
    found = [monitor().measured for _ in range(8)]
    assert found[-1] == pytest.approx(7.0, rel=0.02)


def test_training_is_the_same_with_and_without():
    model, x, y = small()
    ends = []
    for watched in (False, True):
        one = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(one.parameters())
        monitor = Monitor(one, LOSS, (x, y), optimizer, None) if watched else lambda: None
        for _ in range(20):
            optimizer.zero_grad()
            LOSS(one(x), y).backward()
            optimizer.step()
            monitor()
        ends.append([p.tolist() for p in one.parameters()])
    assert ends[0] == ends[1]


class Clock:
    """Time that passes only in training and in products: the budget without a real clock."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("time.perf_counter", lambda: self.now)


def test_the_budget_is_kept(monkeypatch):
    model, x, y = small()
    clock = Clock(monkeypatch)
    plain = TorchModel.part

    def slow(operator, number, v):
        clock.now += 2.0
        return plain(operator, number, v)

    monkeypatch.setattr(TorchModel, "part", slow)  # also of the products that it is made with
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, LOSS, (x, y), optimizer, 0.05)
    for _ in range(5000):
        clock.now += 1.0  # a step of training
        monitor()
        assert monitor.share <= 0.05  # at any time: no product took longer than those before
    assert monitor.share >= 0.8 * 0.05
    assert len(monitor.checks) > 20
    assert np.median([one.products for one in monitor.checks]) <= 4


def test_one_product_that_is_held_up_is_all_that_overdraws(monkeypatch):
    """As on a loaded machine: one product in twenty takes fifty times as long as the others."""
    model, x, y = small()
    truth = float(torch.linalg.eigvalsh(dense(model, LOSS, [(x, y)]))[-1])
    clock, drawn = Clock(monkeypatch), np.random.default_rng(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, LOSS, (x, y), optimizer, 0.05)
    plain, longest, overdrawn = monitor._operator.part, 2.0, 0.0

    def held_up(number, v):
        nonlocal longest
        seconds = 100.0 if drawn.random() < 0.05 else 2.0
        clock.now, longest = clock.now + seconds, max(longest, seconds)
        return plain(number, v)

    monitor._operator.part = held_up
    begun = clock.now
    for _ in range(20_000):
        clock.now += 1.0
        monitor()
        overdrawn = max(overdrawn, monitor.spent - 0.05 * (clock.now - 1.0 - begun))
        assert overdrawn <= longest
    assert overdrawn > 2.0  # it was held up
    assert monitor.share <= 0.05 + longest / clock.now
    assert len(monitor.checks) > 20
    assert all(one.measured == pytest.approx(truth, rel=0.02) for one in monitor.checks)


def test_the_budget_is_kept_batch_by_batch(monkeypatch):
    """Batch sharpness takes a product a batch, and ends where the next could not be paid for."""
    model, x, y = small()
    batches = [(x[k : k + 10], y[k : k + 10]) for k in range(0, 40, 10)]
    clock, drawn = Clock(monkeypatch), np.random.default_rng(0)
    monitor = Monitor(model, LOSS, batches, torch.optim.SGD(model.parameters(), lr=0.1), 0.05)
    plain, longest = monitor._operator.part, 0.0

    def held_up(number, v):
        nonlocal longest
        seconds = 60.0 if drawn.random() < 0.05 else 2.0
        clock.now, longest = clock.now + seconds, max(longest, seconds)
        return plain(number, v)

    monitor._operator.part = held_up
    for _ in range(20_000):
        clock.now += 1.0
        monitor()
        assert monitor.spent <= 0.05 * (clock.now - monitor._begun) + longest
    assert len(monitor.checks) > 20
    assert len({one.measured for one in monitor.checks}) == 1  # of all batches, or not at all


def test_what_was_seen_is_kept(tmp_path):
    model, x, y = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=50.0)

    seen = []
    writer = SimpleNamespace(add_scalar=lambda *what: seen.append(what))
    monitor = Monitor(model, LOSS, (x, y), optimizer, None, writer=writer)
    check = monitor()
    assert monitor.edge_reached == 1
    assert check.headroom < 1
    assert ("flatmin/headroom", check.headroom, 1) in seen
    assert str(check).startswith("step 1: headroom ")
    monitor.write(tmp_path / "watch.parquet")
    row = pd.read_parquet(tmp_path / "watch.parquet").iloc[0]
    assert row["largest_rate"] == pytest.approx(check.largest_rate)
    assert len(monitor.plot().axes) == 2


def test_a_trend_is_carried_on():
    """Headroom that falls by one per cent a step; one check is off."""
    watch = Watch([check_at(step, 2.0 * 1.01**step) for step in range(0, 50, 10)])
    now = watch.checks[-1].largest_rate
    assert watch.rate_ahead(0) == pytest.approx(now)
    assert watch.rate_ahead(9) == pytest.approx(now * 1.01**-9)
    watch.checks[2] = check_at(20, 1.0)
    assert watch.rate_ahead(9) == pytest.approx(now * 1.01**-9)
    falling = Watch([check_at(step, 3.0 * 0.99**step) for step in range(0, 50, 10)])
    assert falling.rate_ahead(9) == falling.checks[-1].largest_rate  # no more than what was seen
    assert Watch([]).rate_ahead(9) is None
    assert Watch([check_at(0, -1.0)]).rate_ahead(9) == np.inf


def check_at(step, measured):
    return Check(
        step=step, seconds=0.0, gauge="SGD", measured=measured, low=measured, high=measured,
        edge=20.0, rate=0.1, products=2, full=True,
    )  # fmt: skip


def test_a_trainers_wrapper_is_its_optimiser():
    model, x, y = small()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapper = SimpleNamespace(optimizer=inner, param_groups=inner.param_groups)
    found = Monitor(model, LOSS, (x, y), wrapper, None)()
    assert found.edge == pytest.approx(20.0)


def test_lower_precision_wrapped_around_a_model_is_not_measured():
    """As accelerate prepares a model for mixed precision."""
    model, x, y = small()
    truth = float(torch.linalg.eigvalsh(dense(model, LOSS, [(x, y)]))[-1])
    model._original_forward = model.forward
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    wrapped = model.forward
    found = Monitor(model, LOSS, (x, y), torch.optim.SGD(model.parameters(), lr=0.1), None)()
    assert found.measured == pytest.approx(truth, rel=1e-3)
    assert model.forward is wrapped


def test_groups_with_rates_and_decays_of_their_own():
    """Against the dense matrix D^(1/2) (H + c) D^(1/2)."""
    model, x, y = small()
    model, x, y = model.double(), x.double(), y.double()
    groups = [
        {"params": model[0].parameters(), "lr": 0.3, "weight_decay": 0.5},
        {"params": model[2].parameters(), "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    found = Monitor(model, LOSS, (x, y), optimizer, None, tolerance=1e-6)()
    scale = torch.cat([torch.full((48,), 0.3), torch.full((18,), 0.1)]).double().sqrt()
    shift = torch.cat([torch.full((48,), 0.5), torch.zeros(18)]).double()
    whole = scale[:, None] * (dense(model, LOSS, [(x, y)]) + shift.diag()) * scale
    assert found.measured == pytest.approx(float(torch.linalg.eigvalsh(whole)[-1]), rel=1e-6)
    assert found.edge == pytest.approx(3.8)


def test_a_notebook_has_one_picture(monkeypatch, capsys):
    model, x, y = small()
    shown = []
    place = SimpleNamespace(update=lambda image: shown.append(image))
    display = lambda image, display_id: shown.append(image) or place  # noqa: E731
    module = SimpleNamespace(Image=bytes, display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(version_info=(9, 0)))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, LOSS, (x, y), optimizer, None, live=True, line=True)
    for _ in range(3):
        monitor()
    assert len(shown) == 3
    assert all(one.startswith(b"\x89PNG") for one in shown)
    assert capsys.readouterr().err.count("\rstep ") == 3
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(SettingError, match="IPython is missing"):
        Monitor(model, LOSS, (x, y), optimizer, live=True)


def test_adapters_answer_what_trainers_call():
    model, x, y = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, LOSS, (x, y), optimizer, None)
    logged = {}

    class Module:
        def log_dict(self, values):
            logged.update(values)

    state = SimpleNamespace(log_history=[], global_step=3)
    lightning, trainer = LightningMonitor(monitor), SimpleNamespace(global_step=1)
    lightning.on_train_start(trainer, Module())
    for batch in range(3):  # gradients accumulate over them
        lightning.on_train_batch_end(trainer, Module(), None, (x, y), batch)
    assert logged["headroom"] == monitor.checks[0].headroom
    assert len(monitor.checks) == 1
    assert lightning.state_key == lightning._legacy_state_key  # of a checkpoint that goes on
    face = HuggingFaceMonitor(monitor)
    assert face.on_step_end(None, state, "control", model=model) == "control"
    assert state.log_history == [{"step": 3, "headroom": monitor.checks[1].headroom}]
    with pytest.raises(AttributeError):
        _ = face.nonsense


def test_bad_input():
    model, x, y = small()
    refuse = lambda optimizer, **more: Monitor(model, LOSS, (x, y), optimizer, **more)  # noqa: E731
    with pytest.raises(
        SettingError, match="no edge of stability is known for Adadelta, only for SGD"
    ):
        refuse(torch.optim.Adadelta(model.parameters()))
    with pytest.raises(SettingError, match="none of its parameters is one of the model's"):
        refuse(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0))
    for odd in (None, torch.optim.SGD):
        with pytest.raises(SettingError, match="optimizer must be one of PyTorch's, got"):
            refuse(odd)
    with pytest.raises(SettingError, match="budget must be a share between 0 and 1, got 3"):
        refuse(torch.optim.SGD(model.parameters(), lr=1.0), budget=3)
    groups = [{"params": [p], "momentum": 0.1 * k} for k, p in enumerate(model.parameters())]
    with pytest.raises(SettingError, match="different momenta"):
        refuse(torch.optim.SGD(groups, lr=1.0))


def test_parameters_that_do_not_move_are_left_out():
    """Frozen ones, and those that no gradient reaches: Adam has no state of them."""
    model, x, y = small()
    model, x, y = model.double(), x.double(), y.double()
    model[0].weight.requires_grad_(False)
    model[0].unused = nn.Parameter(torch.ones(3).double())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    monitor = Monitor(model, LOSS, (x, y), optimizer, None, tolerance=1e-6)
    for free in (False, True):
        model[0].weight.requires_grad_(free)
        optimizer.zero_grad()
        LOSS(model(x), y).backward()
        optimizer.step()
        scale = []
        for one in (p for p in model.parameters() if p.requires_grad):
            state = optimizer.state[one]
            if not state:
                scale.append(torch.zeros(3).double())
                continue
            steps = float(state["step"])
            root = (state["exp_avg_sq"] / (1 - 0.999**steps)).sqrt() + 1e-8
            scale.append((0.1 * (1 - 0.9) / (1 - 0.9**steps) / root).reshape(-1))
        half = torch.cat(scale).sqrt()
        whole = half[:, None] * dense(model, LOSS, [(x, y)]) * half
        truth = float(torch.linalg.eigvalsh(whole)[-1])
        assert monitor().measured == pytest.approx(truth, rel=1e-5)


def test_a_training_that_diverged_is_one_sentence():
    model, x, y = small()
    monitor = Monitor(model, LOSS, (x, y), torch.optim.SGD(model.parameters(), lr=0.1), None)
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.raises(DataError, match="not finite: have the weights diverged"):
        monitor()


def test_no_state_no_check():
    model, x, y = small()
    monitor = Monitor(model, LOSS, (x, y), torch.optim.Adam(model.parameters()), None)
    assert monitor() is None
    assert monitor.checks == []
    rest = torch.optim.SGD(model.parameters(), lr=0.0)  # the end of many schedules
    assert Monitor(model, LOSS, (x, y), rest, None)() is None
