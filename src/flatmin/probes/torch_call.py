"""A PyTorch model as a function of its parameters; nothing of the model changes, nor can it.

Parameters and buffers are handed to the model as copies (`torch.func.functional_call`, which puts
its own back whatever happens), gradients are not accumulated, and the state of the random
generators is put back. A batch always sees the same random numbers, so that dropout is the same in
every product.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flatmin.core.errors import DataError, SettingError
from flatmin.probes.differences import Differences

Loss = Callable[..., Tensor]
Values = dict[str, Tensor]


class TorchCall:
    """The loss of a batch at given parameters.

    A batch that is a pair has the loss loss(model(inputs), targets); any other has
    loss(model, batch).
    """

    def __init__(self, model: nn.Module, loss: Loss, parameters: Iterable[str] | None) -> None:
        if not isinstance(model, nn.Module) or isinstance(model, torch.jit.ScriptModule):
            raise SettingError(f"model must be a plain nn.Module, got {_what(model)}")
        if isinstance(loss, type) or not callable(loss):
            raise SettingError(f"loss must be a function of output and target, got {_what(loss)}")
        self.model, self.loss = model, loss
        self.chosen = choose(model, parameters)
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            self.model = model.module
            self.chosen = {name.removeprefix("module."): p for name, p in self.chosen.items()}
        precision = max(torch.finfo(one.dtype).eps for one in self.chosen.values())
        self.differences = Differences(precision)
        self.writes = False  # whether the model does, into its own parameters: it then has copies
        # Bytes of parameters whose gradients wait at a time, in reverse over reverse; and of those
        # that are moved, in finite differences.
        self.waiting = self.moved = math.inf
        self.holds = True  # whether kinks can be held in finite differences
        self._devices = {one.device for one in self.chosen.values()}
        if len(self._devices) > 1:
            names = ", ".join(sorted(map(str, self._devices)))
            raise SettingError(
                f"the parameters are on several devices ({names}): choose those of one"
            )

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(iter(self._devices))

    def value(
        self, values: Values, batch: Any, number: int, then: Callable[[Tensor], Any] | None = None
    ) -> Any:
        """The loss of a batch, which has this number among the batches, or what is `then` made of
        it: a backward pass may call the model again (checkpoints), and needs these values too."""

        def of(model: nn.Module, one: Any) -> Any:
            pair = isinstance(one, (list, tuple)) and len(one) == 2
            loss = self.loss(model(one[0]), one[1]) if pair else self._whole(model, one)
            return self._checked(loss) if then is None else then(self._checked(loss))

        with self.drawing(number):
            return self._called(of, values, batch)

    def _whole(self, model: nn.Module, batch: Any) -> Any:
        try:
            return self.loss(model, batch)
        except TypeError as error:
            kind = type(batch).__name__
            raise SettingError(
                f"a batch that is no pair, here a {kind}, has the loss loss(model, batch), which "
                f"failed: {str(error).splitlines()[0]}"
            ) from error

    def look_for_writes(self, batch: Any) -> None:
        """Whether the model writes into its own parameters, as embeddings with a norm do."""
        copies = {name: one.clone() for name, one in self._every().items()}
        with torch.no_grad():
            self.value(copies, batch, 0)
        self.writes = any(one._version > 0 for one in copies.values())

    def _every(self) -> Values:
        return {name: one.detach() for name, one in self.model.named_parameters()}

    def output(
        self, values: Values, inputs: Any, then: Callable[[Tensor], Any] = lambda out: out
    ) -> Any:
        """The model's output, or what is `then` made of it."""
        return self._called(lambda model, given: then(model(given)), values, inputs)

    def _called(self, function: Callable[..., Any], values: Values, given: Any) -> Any:
        buffers = {name: one.clone() for name, one in self.model.named_buffers()}
        if self.writes:
            values = {name: one.clone() for name, one in {**self._every(), **values}.items()}
        named = {f"model.{name}": one for name, one in {**buffers, **values}.items()}
        with own_forward(self.model):
            return functional_call(_Within(self.model, function), named, (given,))

    def _checked(self, value: Any) -> Tensor:
        if not isinstance(value, Tensor) or value.numel() != 1:
            what = (
                f"a tensor of shape {tuple(value.shape)}"
                if isinstance(value, Tensor)
                else repr(value)
            )
            raise SettingError(
                f"loss must return one number, got {what}: take its mean over the samples"
            )
        return value.reshape(())

    @contextmanager
    def drawing(self, seed: int) -> Iterator[None]:
        """The same random numbers for a batch in every product; the state before afterwards."""
        device = self.device
        own = getattr(torch, device.type) if device.type in ("cuda", "mps") else None
        place = (device,) if device.type == "cuda" else ()
        before = torch.get_rng_state(), None if own is None else own.get_rng_state(*place)
        try:
            torch.default_generator.manual_seed(seed)
            if own is not None:
                own.manual_seed(seed)
            yield
        finally:
            torch.set_rng_state(before[0])
            if own is not None:
                own.set_rng_state(before[1], *place)


class _Within(nn.Module):  # type: ignore[misc, unused-ignore]
    """A function of a model, all of which sees the model's parameters as they are given."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self._function = model, function

    def forward(self, given: Any) -> Any:
        return self._function(self.model, given)


def reached(value: Tensor) -> set[int]:
    """Identities of the leaves that a value was computed from."""
    found, seen, left = set(), set(), [value.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(id(node.variable))
        left.extend(following for following, _ in node.next_functions)
    return found


@contextmanager
def plainly() -> Iterator[None]:
    """Derivatives are taken, whatever surrounds the call."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextmanager
def held(*own: Tensor) -> Iterator[dict[int, int]]:
    """Bytes of what is kept for a backward pass, by its place, but for one's own tensors."""
    found: dict[int, int] = {}
    known = {one.untyped_storage().data_ptr() for one in own}

    def note(one: Tensor) -> Tensor:
        place = one.untyped_storage()
        if place.data_ptr() not in known:
            found[place.data_ptr()] = place.nbytes()
        return one.detach()

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(note, lambda one: one):
        yield found


@contextmanager
def own_forward(model: nn.Module) -> Iterator[None]:
    """Without the lower precision into which Hugging Face's accelerate wraps a model's forward."""
    own, wrapped = model.__dict__.get("_original_forward"), model.__dict__.get("forward")
    if own is None or wrapped is None:
        yield
        return
    model.__dict__["forward"] = own
    try:
        yield
    finally:
        model.__dict__["forward"] = wrapped


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Layers that drop drop nothing; how much they do is put back, also after an exception."""
    layers = [one for one in model.modules() if isinstance(one, nn.modules.dropout._DropoutNd)]
    shares = [one.p for one in layers]
    try:
        for one in layers:
            one.p = 0.0
        yield
    finally:
        for one, share in zip(layers, shares, strict=True):
            one.p = share


def choose(model: nn.Module, names: Iterable[str] | None) -> Values:
    """The parameters that are differentiated, by name; what modules share has its first name."""
    known = dict(model.named_parameters())
    if not known:
        raise SettingError(f"the model {type(model).__name__} has no parameters")
    if names is None:
        chosen = {name: one for name, one in known.items() if one.requires_grad}
    else:
        chosen = {}
        first = {id(one): name for name, one in known.items()}
        every = dict(model.named_parameters(remove_duplicate=False))
        for name in _names(names):
            if name not in every:
                raise SettingError(f"parameters: the model has no parameter {name!r}")
            chosen[first[id(every[name])]] = every[name]
    whole = [name for name, one in known.items() if not one.is_floating_point()]
    if whole and not (chosen and set(whole).isdisjoint(chosen)):
        kind = known[whole[0]].dtype
        raise SettingError(
            f"parameter {whole[0]!r} is of type {kind}: a Hessian needs float32 or float64"
        )
    if not chosen:
        raise SettingError("no parameter of the model requires a gradient (requires_grad is False)")
    for name, value in chosen.items():
        if value.is_meta or isinstance(value, nn.parameter.UninitializedParameter):
            raise SettingError(f"parameter {name!r} has no values yet: {_what(value)}")
        if value.is_inference():
            raise SettingError(
                f"parameter {name!r} was made in torch.inference_mode(): it has no derivatives"
            )
        if value.dtype not in (torch.float32, torch.float64):
            raise SettingError(
                f"parameter {name!r} is of type {value.dtype}: a Hessian needs float32 or float64 "
                "(model.float())"
            )
        if not bool(torch.isfinite(value).all()):
            raise DataError(f"parameter {name!r} holds values that are not finite")
    return chosen


def _names(names: Iterable[str]) -> list[str]:
    if isinstance(names, str):
        raise SettingError(f"parameters must be a list of names, got the string {names!r}")
    found = list(names)
    for one in found:
        if not isinstance(one, str):
            raise SettingError(f"parameters must be names of parameters, got {_what(one)}")
    if not found:
        raise SettingError("parameters: the list of names is empty")
    return found


def _what(given: object) -> str:
    """A few words for a message; tensors are long."""
    if isinstance(given, type):
        return f"the class {given.__name__}: make one, {given.__name__}(...)"
    if isinstance(given, Tensor):
        place = " on the device meta" if given.is_meta else ""
        return f"a {type(given).__name__}{place}"
    return repr(given) if isinstance(given, (str, int, float)) else type(given).__name__
