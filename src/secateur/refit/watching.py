"""The modes under which a pass stops at every call that contracts something with a parameter, and at batch norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from secateur.base import tensors_in
from secateur.capture import PrivateRandom, SeesInside
from secateur.refit.lockstep import OFF_THE_WAY, Place, Stop
from secateur.refit.weight_calls import WeightCall, convolution, from_the_left, linear, product

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class NormCall:
    """A batch norm with the statistics of training."""

    mean: Tensor
    """Of each channel; channels are axis 1 of what it reads and gives."""
    scale: Tensor
    """By which it multiplies."""
    run: Callable[[], Tensor]


class Parameters:
    """Finds the parameter behind a tensor that is a view of it, by what it is called in the dense model."""

    def __init__(self, model: nn.Module, dense_name: Callable[[str], str] = str) -> None:
        self.buffers = {id(buffer): dense_name(name) for name, buffer in model.named_buffers()}
        self._by_storage: dict[int, list[tuple[str, Tensor]]] = {}
        for name, parameter in model.named_parameters():
            known = self._by_storage.setdefault(parameter.untyped_storage()._cdata, [])
            known.append((dense_name(name), parameter))

    def behind(self, view: Tensor) -> tuple[str, Tensor] | None:
        for name, parameter in self._by_storage.get(view.untyped_storage()._cdata, ()):
            begin = parameter.storage_offset()
            if begin <= view.storage_offset() < begin + max(1, parameter.numel()) and view.dtype == parameter.dtype:
                return name, parameter
        return None


def autocast_of_this_thread(*, off: bool = False) -> Callable[[], ExitStack]:
    """Lets another thread compute as this one would, or `off`: autocast belongs to a thread."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    states = [(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)) for device in devices]

    def entered() -> ExitStack:
        stack = ExitStack()
        for device, dtype, enabled in states:
            if torch.is_autocast_enabled(device) != (enabled and not off):
                stack.enter_context(torch.autocast(device, dtype, enabled and not off))
        return stack

    return entered


class Watch:
    """What the modes of one pass share."""

    def __init__(
        self, stop: Callable[[Stop], None], parameters: Parameters, must_stay: dict[str, str], way: Sequence[Place] = ()
    ) -> None:
        self.parameters = parameters
        self._order = {place: number for number, place in enumerate(way)}
        self.must_stay = must_stay
        """Parameters that cannot be fitted, and why: something else reads them, and wants them as they are."""
        self.seen_whole = False
        """Whether what runs is part of a call that has been stopped at."""
        self._stop = stop
        self._times: Counter[str] = Counter()
        self._bias_of: dict[str, str | None] = {}
        self._weight_of: dict[str, str] = {}

    def weight_call(self, call: WeightCall) -> Tensor:
        """Stops if the weight is a parameter, and its bias another or none."""
        found = None if self.seen_whole else self.parameters.behind(call.weight)
        if found is None:
            return call.run()
        bias = None if call.bias is None else self.parameters.behind(call.bias)
        if call.bias is not None and bias is None:
            self.must_stay.setdefault(found[0], "its bias is computed")
        self._note_pair(found[0], bias and bias[0])
        return self.stop_at(found[0], call)

    def _note_pair(self, weight: str, bias: str | None) -> None:
        if self._bias_of.setdefault(weight, bias) != bias:
            self.must_stay.setdefault(weight, "it is used with another bias, too")
        if bias is not None and (other := self._weight_of.setdefault(bias, weight)) != weight:
            for each in (weight, other):
                self.must_stay.setdefault(each, f"{bias} is the bias of another weight, too")

    def stop_at(self, name: str, call: WeightCall | NormCall) -> Tensor:
        place = name, self._times[name]
        stop = Stop(*place, self._order.get(place, OFF_THE_WAY), call)
        self._times[name] += 1
        self._stop(stop)
        if stop.result is not None:
            return stop.result  # type: ignore[no-any-return]
        self.seen_whole = True
        try:
            return call.run()
        finally:
            self.seen_whole = False

    def note_other_readers(self, op: Any, args: tuple[Any, ...]) -> None:
        if not self.seen_whole and not op.is_view:
            for tensor in tensors_in(args, objects=False):
                if (found := self.parameters.behind(tensor)) is not None:
                    self.must_stay.setdefault(found[0], f"{op._schema.name.split('::')[-1]} reads it, too")


_CONVOLUTIONS = {
    *(torch.conv1d, torch.conv2d, torch.conv3d),
    *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d),
}


class Functions(SeesInside):
    """Sees linear layers and batch norms whole, before torch takes them apart."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is torch._C._nn.linear:
            return self._linear(*args, **kwargs)
        if function is torch.batch_norm and not kwargs:
            return self._batch_norm(*args)
        if function in _CONVOLUTIONS and len(args) > 1 and torch.is_autocast_enabled(args[0].device.type):
            return self._convolution(function, *args, **kwargs)
        return function(*args, **kwargs)

    def _convolution(self, function: Any, input: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """In the precision of its weight, because operators see only copies of weights that autocast has rounded."""
        device = input.device.type
        with torch.autocast(device, enabled=False):
            output: Tensor = function(input.to(weight.dtype), weight, *args, **kwargs)
        return output.to(torch.get_autocast_dtype(device))

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        as_here = autocast_of_this_thread()

        def run() -> Tensor:
            with as_here():
                return torch._C._nn.linear(input, weight, bias)

        return self._watch.weight_call(linear(input, weight, bias, run))

    def _batch_norm(self, *args: Any) -> Tensor:
        _, weight, _, mean, variance, training, _, epsilon = args[:8]
        name = None if training or mean is None else self._watch.parameters.buffers.get(id(mean))
        if name is None:
            return torch.batch_norm(*args)
        scale = (variance + epsilon).rsqrt() * (1.0 if weight is None else weight)
        return self._watch.stop_at(name, NormCall(mean, scale, lambda: torch.batch_norm(*args)))


class Operators(TorchDispatchMode):
    """Sees all other contractions."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch
        self._random = PrivateRandom()
        self._seen: dict[Any, Callable[..., Any]] = {
            aten.convolution.default: self._convolution,
            aten.mm.default: self._mm,
            aten.addmm.default: self._addmm,
            aten.bmm.default: self._bmm,
            aten.mkldnn_rnn_layer.default: self._lstm_layer,
        }

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if op in self._seen and not kwargs:
            return self._seen[op](*args)
        self._watch.note_other_readers(op, args)
        return self._random.run(op, args, kwargs)

    def _convolution(self, read: Tensor, weight: Tensor, bias: Tensor | None, *geometry: Any) -> Tensor:
        def run() -> Tensor:
            return aten.convolution.default(read, weight, bias, *geometry)  # type: ignore[no-any-return]

        if self._watch.seen_whole:
            return run()
        return self._watch.weight_call(convolution(run, read, weight, bias, *geometry))

    def _mm(self, left: Tensor, right: Tensor) -> Tensor:
        return self._product(left[None], right[None], None, lambda: torch.mm(left, right))

    def _addmm(self, added: Tensor, left: Tensor, right: Tensor) -> Tensor:
        return self._product(left[None], right[None], added, lambda: torch.addmm(added, left, right))

    def _bmm(self, left: Tensor, right: Tensor) -> Tensor:
        return self._product(left, right, None, lambda: torch.bmm(left, right))

    def _product(self, left: Tensor, right: Tensor, bias: Tensor | None, run: Callable[[], Tensor]) -> Tensor:
        known = self._watch.parameters
        if known.behind(right) is not None and (bias is None or bias.dim() == 1):
            return self._watch.weight_call(product(left, right, bias, run))
        if known.behind(left) is not None and bias is None:
            return self._watch.weight_call(from_the_left(left, right, run))
        self._watch.note_other_readers(aten.mm.default, (left, right, bias))
        return run()

    def _lstm_layer(self, read: Tensor, *args: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Step by step, because the whole hides what its second weight reads. Time is the first axis."""
        to_gates, from_hidden, bias, hidden_bias, hidden, cell, reverse = args[:7]
        if not args[11]:  # without biases torch passes zeros
            bias = hidden_bias = None
        gates = self._apply(read, to_gates, bias)
        outputs: list[Tensor] = []
        for step in reversed(range(len(read))) if reverse else range(len(read)):
            now = gates[step] + self._apply(hidden, from_hidden, hidden_bias)
            into, forget, new, out = now.chunk(4, dim=-1)
            cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
            hidden = out.sigmoid() * cell.tanh()
            outputs.append(hidden)
        return torch.stack(outputs[::-1] if reverse else outputs), hidden, cell, read.new_empty(0)

    def _apply(self, read: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._watch.weight_call(linear(read, weight, bias, lambda: torch._C._nn.linear(read, weight, bias)))
