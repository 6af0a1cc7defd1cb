"""Thin adapters: a monitor in the loops of Lightning and of Hugging Face's trainer.

Neither library is imported. Both call methods by name, and take any object that has those that they
call; methods that an adapter does not know are answered by doing nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flatmin.probes.torch_monitor import Monitor


class _Adapter:
    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor

    def __getattr__(self, name: str) -> Callable[..., None]:
        if not name.startswith("on_") and name not in ("setup", "teardown"):
            raise AttributeError(name)
        return lambda *_, **__: None


class LightningMonitor(_Adapter):
    """`Trainer(callbacks=[LightningMonitor(monitor)])`; logs the headroom."""

    _step = 0

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any, **__: Any) -> None:
        """After every step of the optimiser: not of every batch, where gradients accumulate."""
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        check = self.monitor()
        if check is not None:
            module.log_dict({"headroom": check.headroom, "largest_stable_rate": check.largest_rate})

    def state_dict(self) -> dict[str, Any]:
        """Nothing that a checkpoint would need."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""

    @property
    def state_key(self) -> str:
        """Its name in a checkpoint."""
        return "flatmin.Monitor"

    _legacy_state_key = state_key  # asked for when a training goes on from a checkpoint


class HuggingFaceMonitor(_Adapter):
    """`Trainer(callbacks=[HuggingFaceMonitor(monitor)])`."""

    def on_step_end(self, arguments: Any, state: Any, control: Any, **_: Any) -> Any:
        """After every step of the optimiser; the headroom goes into the trainer's history."""
        check = self.monitor()
        if check is not None:
            state.log_history.append({"step": state.global_step, "headroom": check.headroom})
        return control
