"""Batches for PyTorch models: a batch, a list of them or a loader, read once and checked.

A loader is gone through once and its batches are kept, so a loader that shuffles, or that leaves
out another rest at every pass, cannot change the matrix from product to product. Their description
says so (`describe`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from flatmin.core.errors import DataError, SettingError


def as_batches(batches: Any, device: torch.device) -> list[Any]:
    """All batches, where the model is; values that are not finite are refused."""
    tensors = isinstance(batches, (tuple, list)) and all(isinstance(x, Tensor) for x in batches)
    if tensors and (len(batches) == 2 or (batches and isinstance(batches, tuple))):
        found: list[Any] = [tuple(batches)]
    elif isinstance(batches, Tensor) or hasattr(batches, "keys"):
        found = [batches]
    elif isinstance(batches, Iterable):
        found = list(batches)
    else:
        kind = type(batches).__name__
        raise SettingError(f"batches must be a batch, a list of batches or a loader, got {kind}")
    if not found:
        raise DataError("there are no batches (an iterator can be gone through only once)")
    moved = [_moved(batch, device) for batch in found]
    for number, batch in enumerate(moved, 1):
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
    if isinstance(batch, Tensor):
        return batch[begin:end] if batch.ndim and batch.shape[0] == count else batch
    if isinstance(batch, dict):
        return {key: _cut(one, begin, end, count) for key, one in batch.items()}
    if isinstance(batch, (list, tuple)):
        return _like(batch, [_cut(one, begin, end, count) for one in batch])
    return batch


def _tensors(batch: Any) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, dict):
        for one in batch.values():
            yield from _tensors(one)
    elif isinstance(batch, (list, tuple)):
        for one in batch:
            yield from _tensors(one)


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor):
        return batch.to(device)
    if isinstance(batch, dict) or hasattr(batch, "keys"):
        return {key: _moved(batch[key], device) for key in batch}
    if isinstance(batch, (list, tuple)):
        return _like(batch, [_moved(one, device) for one in batch])
    return batch


def _like(batch: Any, parts: list[Any]) -> Any:
    """A list, a tuple or a named tuple of the same kind."""
    return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
