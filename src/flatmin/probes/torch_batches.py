"""Batches for PyTorch models: a batch, a list of them or a loader, read once and checked.

A loader is gone through once and its batches are kept, so a loader that shuffles, or that leaves
out another rest at every pass, cannot change the matrix from product to product. Their description
says so (`describe`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from flatmin.core.errors import DataError, SettingError


def as_batches(batches: Any, device: torch.device) -> list[Any]:
    """All batches, where the model is; values that are not finite are refused."""
    tensors = isinstance(batches, (tuple, list)) and all(isinstance(x, Tensor) for x in batches)
    if tensors and (len(batches) == 2 or (batches and isinstance(batches, tuple))):
        found: list[Any] = [tuple(batches)]
    elif isinstance(batches, Tensor) or hasattr(batches, "keys") or is_dataclass(batches):
        found = [batches]
    elif isinstance(batches, Iterable):
        drawn = torch.get_rng_state()  # loaders draw a seed
        try:
            found = list(batches)
        finally:
            torch.set_rng_state(drawn)
    else:
        kind = type(batches).__name__
        raise SettingError(f"batches must be a batch, a list of batches or a loader, got {kind}")
    if not found:
        raise DataError("there are no batches (an iterator can be gone through only once)")
    moved = [_moved(batch, device) for batch in found]
    for number, batch in enumerate(moved, 1):
        if any(one.is_meta for one in _tensors(batch)):
            raise DataError(f"batch {number} of {len(moved)} has no values: it is on device meta")
        if not any(one.ndim and one.shape[0] for one in _tensors(batch)):
            kind = type(batch).__name__
            raise DataError(
                f"batch {number} of {len(moved)}, a {kind}, holds no tensor with samples along its "
                "first axis"
            )
        for one in _tensors(batch):
            if one.is_floating_point() and not bool(torch.isfinite(one).all()):
                raise DataError(f"batch {number} of {len(moved)} holds values that are not finite")
    return moved


def describe(batches: Any, found: list[Any]) -> str:
    """How many samples in how many batches, and what was done about a loader that shuffles."""
    samples = sum(rows(batch) for batch in found)
    words = f"{samples} samples in {len(found)} batch{'es' * (len(found) > 1)}"
    sampler = getattr(batches, "sampler", None)
    if isinstance(sampler, torch.utils.data.RandomSampler):
        rest = " and leaves out a rest" if getattr(batches, "drop_last", False) else ""
        return f"{words}, of one pass of a loader that shuffles{rest}"
    return words


def rows(batch: Any) -> int:
    """The number of samples of a batch: the length of its first tensor."""
    return next(int(one.shape[0]) for one in _tensors(batch) if one.ndim and one.shape[0])


def chunks(batch: Any, most: int | None) -> Iterator[tuple[float, Any]]:
    """Pieces of at most so many rows, each with its share of the batch."""
    count = rows(batch)
    if most is None or count <= most:
        yield 1.0, batch
        return
    for begin in range(0, count, most):
        end = min(begin + most, count)
        yield (end - begin) / count, _cut(batch, begin, end, count)


def _cut(batch: Any, begin: int, end: int, count: int) -> Any:
    return _mapped(batch, lambda one: one[begin:end] if one.ndim and one.shape[0] == count else one)


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
        return
    parts = _named(batch)
    for one in batch if isinstance(batch, (list, tuple)) else (parts or {}).values():
        yield from _tensors(one)


def _moved(batch: Any, device: torch.device) -> Any:
    """Where the model is; what was made in inference mode has no derivatives, a copy has."""
    return _mapped(
        batch,
        lambda one: one if one.is_meta else (one.clone() if one.is_inference() else one).to(device),
    )


def _mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A batch of the same kind with other tensors."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, (list, tuple)):
        parts = [_mapped(one, change) for one in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    named = _named(batch)
    if named is None:
        return batch
    found = copy.copy(batch)
    for key, one in named.items():
        other = _mapped(one, change)
        if hasattr(batch, "keys"):
            found[key] = other
        else:
            object.__setattr__(found, key, other)  # also of a frozen one
    return found


def _named(batch: Any) -> dict[Any, Any] | None:
    """The entries of a mapping, whatever its kind, or the fields of a data class."""
    if hasattr(batch, "keys"):
        return {key: batch[key] for key in batch.keys()}  # noqa: SIM118
    if is_dataclass(batch) and not isinstance(batch, type):
        return {one.name: getattr(batch, one.name) for one in fields(batch)}
    return None
