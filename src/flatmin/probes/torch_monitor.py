"""A monitor of training: how far from the edge of stability, for a share of its time.

Most checks are quick: from the last eigenvector with a little of a new random vector, until the
value has settled. Every few checks a full one begins from the last eigenvector and as much of a
random vector, and goes on until its interval is narrow: a new largest eigenvalue is noticed.

The share is kept whatever else the machine does. A check begins when what is left pays for as many
products as the last one took, at their recent pace, and for one that is held up as long as any
lately; no product begins that what is left would not pay for if it were held up so; and a check
that ends so earlier, before its value has settled, says nothing, and is tried again. So only a
product that is held up longer than those before it overdraws, by as much, and that is saved again.
"""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import numpy as np
from torch import Tensor, nn

from flatmin.core.checks import check_count, check_positive
from flatmin.core.errors import SettingError
from flatmin.probes.measure import largest, standard_error
from flatmin.probes.scaled import Scaled
from flatmin.probes.torch_call import Loss, plainly
from flatmin.probes.torch_gauges import Gauge, gauge_of
from flatmin.probes.torch_model import TorchModel
from flatmin.probes.watch import Check, LivePicture, Watch, tell

FULL_EVERY = 8
# Bytes of a step from which on memory is spared; below, that makes products two to five times
# slower (the networks of `flatmin bench monitor`), and a monitor has little time.
LARGE = 32e6
CARE = 1.2  # products may take longer than in the last check
FORGOTTEN = 0.95  # a check: how long the slowest product is remembered
NEWS = 0.1  # the length of the random part of a quick check's start


class Monitor(Watch):
    """Call it after every step of the optimiser; it looks when it can afford to.

    - budget: the share of the time that it may take, as measured, besides its making; the first
      check waits until it can be afforded. None: a check at every call;
    - batches: what the loss is measured on. Several batches mean that each step sees one of them:
      plain SGD is then gauged by batch sharpness (`small_batches` says otherwise);
    - chunk, how: as for `flatmin.torch.sharpness`;
    - writer: anything with TensorBoard's `add_scalar`; line: whether to print a line a check;
      live: whether to draw in a notebook, within the budget.
    """

    @plainly()
    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        batches: Any,
        optimizer: Any,
        budget: float | None = 0.03,
        *,
        tolerance: float = 0.02,
        confidence: float = 0.999,
        small_batches: bool | None = None,
        chunk: int | None = None,
        how: str | None = None,
        most_products: int = 100,
        writer: Any = None,
        line: bool = False,
        live: bool = False,
    ) -> None:
        super().__init__(checks=[])
        if budget is not None and not 0.0 < budget <= 1.0:
            raise SettingError(f"budget must be a share between 0 and 1, got {budget!r}")
        self._budget, self._line, self._writer = budget, line, writer
        self._picture = LivePicture() if live else None
        self._tolerance = check_positive("tolerance", tolerance)
        self._confidence, self._most = confidence, check_count("most_products", most_products)
        if isinstance(optimizer, type) or not hasattr(optimizer, "param_groups"):
            raise SettingError(f"optimizer must be one of PyTorch's, got {optimizer!r:.60}")
        self._model, self._loss, self._optimizer = model, loss, optimizer
        self._way: dict[str, Any] = {"chunk": chunk, "how": how}
        self._trained: dict[str, Tensor] = {}
        self._vector: Tensor | None = None
        self._follow(batches)
        gauge_of(optimizer, list(self._trained.values()))  # says at once if there is none
        several = len(self._operator.shares) > 1
        self._small = several if small_batches is None else small_batches
        # The direction of the parameters that is the first to become unstable, flat.
        self.top: Tensor | None = None
        self._steps = self._looks = 0
        self._begun = time.perf_counter()
        self.spent = 0.0
        self._pace = 0.0  # seconds a product
        # Products of the last full and the last quick check; twice, of one cut short. At first
        # what is usual: with fewer a full check would be cut short, and begun again.
        self._wanted = {True: min(12, self._most), False: min(2, self._most)}
        self._allowed = self._most
        for _ in range(2):  # the first product loads what it needs, the second is timed
            begun = time.perf_counter()
            largest(self._operator, confidence=confidence, budget=1)
            self._pace = time.perf_counter() - begun
        self._slowest, self._since, self._deadline = self._pace, 0.0, math.inf

    def _follow(self, batches: Any) -> None:
        """The parameters that are trained now: some may be frozen, or set free, on the way."""
        own = {id(one) for group in self._optimizer.param_groups for one in group["params"]}
        trained = {
            name: one
            for name, one in self._model.named_parameters()
            if id(one) in own and one.requires_grad
        }
        if not trained:
            raise SettingError("optimizer: none of its parameters is one of the model's")
        if trained.keys() != self._trained.keys():
            self._trained, self._vector = trained, None
            self._operator = TorchModel(
                self._model, self._loss, batches, list(trained), **self._way, large=LARGE
            )

    @property
    def share(self) -> float:
        """The share of all time since the first call that calls took."""
        total = time.perf_counter() - self._begun
        return self.spent / total if total else 0.0

    def __call__(self) -> Check | None:
        """After a step: a check, or None where the budget does not allow it."""
        begun = time.perf_counter()
        if self._steps == 0:
            self._begun = begun
        self._steps += 1
        full, found, settled = self._full, None, False
        left = self._left(begun)
        self._allowed = int(min(self._most, (left - self._slowest) / (CARE * self._pace or 1e-9)))
        if self._allowed >= self._wanted[full]:
            found, settled = self._look(begun + left)
        if found is not None and settled:
            self._keep(found)
        cost = time.perf_counter() - begun
        self.spent += cost
        if found is None:
            return None
        narrow = found.high - found.low <= self._tolerance * abs(found.measured)
        cut = not settled or (found.full and not narrow)
        wanted = max(self._wanted[full], 2 * found.products) if cut else found.products
        self._wanted[full] = min(self._most, wanted)
        self._pace += 0.5 * (cost / found.products - self._pace)
        if not settled:
            return None
        self._draw()
        return found

    def _left(self, now: float) -> float:
        """Seconds that may be spent by now."""
        if self._budget is None:
            return math.inf
        return self._budget * (now - self._begun) - self.spent

    def _draw(self) -> None:
        """The live picture, if one as costly as the last can be afforded."""
        begun = time.perf_counter()
        if self._picture is not None and self._left(begun) >= self._picture.seconds:
            self._picture.draw(self)
            self.spent += time.perf_counter() - begun

    @property
    def _full(self) -> bool:
        """Whether the next check is a full one."""
        return len(self.checks) % FULL_EVERY == 0

    def check(self, step: int | None = None) -> Check | None:
        """A check now, whatever the budget; None while the optimiser has no state."""
        self._steps = self._steps if step is None else step
        self._allowed = self._most
        found, _ = self._look(math.inf)
        if found is not None:
            self._keep(found)
        return found

    @plainly()
    def _look(self, deadline: float) -> tuple[Check | None, bool]:
        """What the gauge reads, and whether that had settled before the deadline."""
        self._follow(iter(self._operator.batches))
        gauge = gauge_of(self._optimizer, list(self._trained.values()))
        if gauge is None:
            return None, False
        self._slowest *= FORGOTTEN
        self._since, self._deadline = time.perf_counter(), deadline
        found = self._batches(gauge) if self._small and gauge.plain else self._eigenvalue(gauge)
        self._affords()
        return found

    def _affords(self) -> bool:
        """After a product: whether another one can be paid for if it takes as long as any."""
        now = time.perf_counter()
        self._slowest, self._since = max(self._slowest, now - self._since), now
        return now + self._slowest <= self._deadline

    def _keep(self, found: Check) -> None:
        self.checks.append(found)
        if self._writer is not None:
            tell(found, self._writer)
        if self._line:
            print(f"\r{found}\x1b[K", end="", file=sys.stderr, flush=True)

    def _eigenvalue(self, gauge: Gauge) -> tuple[Check, bool]:
        full = self._full
        self._looks += 1
        matrix = Scaled(self._operator, gauge.root, gauge.shift)
        found = largest(
            matrix,
            tolerance=self._tolerance,
            confidence=self._confidence,
            budget=self._allowed,
            start=self._vector,
            seed=self._looks,  # never one that the start depends on
            quick=not full,
            news=1.0 if full else NEWS,
            go_on=self._affords,
        )
        whole = self._deadline == math.inf or found.products >= self._wanted[full]
        settled = found.settled or whole
        if settled or self._vector is None:
            self._vector, self.top = found.vector, gauge.root * found.vector
        # Where one rate holds for all, the sharpness itself is shown.
        one = float(gauge.root[0]) ** 2 if bool((gauge.root == gauge.root[0]).all()) else 1.0
        check = Check(
            step=self._steps,
            seconds=time.perf_counter() - self._begun,
            gauge=gauge.name,
            measured=found.value / one,
            low=found.low / one,
            high=found.high / one,
            edge=gauge.reach / one,
            rate=gauge.rate,
            products=found.products,
            full=full,
        )
        return check, settled

    def _batches(self, gauge: Gauge) -> tuple[Check, bool]:
        """Batch sharpness, with two standard errors on either side, if all batches are afforded."""
        operator, values = self._operator, []
        for number, g in enumerate(operator.gradients()):
            square = float(operator.dots([g], g)[0])
            bent = operator.part(number, g) + gauge.shift * g
            values.append(float(operator.dots([g], bent)[0]) / square if square else 0.0)
            if not self._affords():
                break
        shares = operator.shares[: len(values)]
        mean = float(np.dot(shares, values)) / sum(shares)
        error = standard_error(shares, np.array(values))
        room = 2.0 * error if error is not None else math.inf
        check = Check(
            step=self._steps,
            seconds=time.perf_counter() - self._begun,
            gauge="batch sharpness",
            measured=mean,
            low=mean - room,
            high=mean + room,
            edge=gauge.reach / gauge.rate,
            rate=gauge.rate,
            products=1,
            full=False,
        )
        return check, len(values) == len(operator.shares)
