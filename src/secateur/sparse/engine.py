"""`sparse_engine`: a masked model made ready for inference on a CPU, with its zeros left out where that is faster."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from secateur.base import (
    SecateurError,
    UsageError,
    aligned,
    as_call,
    copied,
    copy_of_model,
    explaining,
    interruptible,
    require_module,
    threads_text,
    uninterrupted,
    unwrap,
    working,
)
from secateur.bench import require_threads, this_machine, torch_threads
from secateur.capture import without_random_effects
from secateur.sparse.backend import why_unavailable
from secateur.sparse.dense import DenseLayer
from secateur.sparse.fold import fold_graph
from secateur.sparse.graph import capture_graph
from secateur.sparse.in_place import layers_in_place
from secateur.sparse.origin import Origin, origin_of
from secateur.sparse.trial import FEWEST_ZEROS, LayerChoice, choose


class SparseEngine(nn.Module):
    """Computes what the model computes in evaluation mode; `print(engine)` says which layers went sparse, and why."""

    def __init__(
        self, network: nn.Module, layers: tuple[LayerChoice, ...], threads: int, notes: list[str], origin: Origin
    ) -> None:
        super().__init__()
        self.network, self.layers, self.threads, self.notes, self.origin = network, layers, threads, notes, origin
        for module in self.modules():
            module.training = False

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.network(*args, **kwargs)

    def train(self, mode: bool = True) -> SparseEngine:
        """It stays in evaluation mode: its batch norms are folded, and its weights packed."""
        return self

    def __str__(self) -> str:
        sparse = sum(layer.sparse for layer in self.layers)
        head = f"{sparse} of {len(self.layers)} layers are sparse, as measured on {threads_text(self.threads)}."
        machine = self.origin.machine
        elsewhere = [] if machine == this_machine().name else [f"That was on another machine: {machine}."]
        return "\n".join([head, *elsewhere, *self.notes, *_table(self.layers)])


def _table(layers: tuple[LayerChoice, ...]) -> list[str]:
    rows = [("layer", "weight", "zeros", "block", "sparse ÷ dense", "runs", "because")]
    for each in layers:
        rows.append(
            (
                each.name,
                "×".join(map(str, each.shape)),
                f"{each.sparsity:.1%}",
                "4×1" if each.block == 4 else "",
                "" if each.timing is None else str(each.timing),
                "sparse" if each.sparse else "dense",
                each.reason,
            )
        )
    return aligned(rows, right=(2,)) if layers else []


def sparse_engine(model: nn.Module, example_inputs: Any, *, threads: int = 1, progress: bool = True) -> SparseEngine:
    """Makes a module for inference on a CPU out of a masked model, which stays as it is.

    Batch norms, activations and residuals are folded into the layers before them. Each linear layer and convolution
    with enough zeros is then timed dense and sparse, and goes sparse only where that is faster beyond the noise. The
    batch and other sizes may change as far as the model's own code allows. `print(engine)` shows which layers went
    sparse, and why.

    Args:
        model: in float32 on the CPU, with its masks applied, unstructured or in blocks such as "4x1".
        example_inputs: a tensor, a tuple of arguments, or a dict of keyword arguments, of the sizes to be fast at.
        threads: how many to measure with.
        progress: False for silence.
    """
    _require_model(model)
    require_threads(threads)
    with (
        uninterrupted(patience=1),
        torch_threads(torch.get_num_threads()),
        without_random_effects(),
        torch.inference_mode(False),
        torch.no_grad(),
    ):
        own = copy_of_model(unwrap(model)).eval()
        _require_fitting(copy_of_model(own), example_inputs)
        network, layers, notes = interruptible(_prepared, own, example_inputs)
        origin = origin_of(own, example_inputs, network, [layer for _, layer in layers])
        with working("timing the layers, dense and sparse in turn", progress):
            choices, whole = interruptible(choose, network, layers, example_inputs, threads)
    notes += [] if whole is None else [f"With its sparse layers, the model takes {whole} times as long as without."]
    return SparseEngine(network, choices, threads, [*notes, *_why_nothing_is_sparse(choices)], origin)


def _require_model(model: nn.Module) -> None:
    require_module(model)
    for name, parameter in model.named_parameters():
        if parameter.device.type != "cpu":
            raise UsageError(
                f"{name} is on {parameter.device}, and the engine runs on a CPU; move it with model.cpu()."
            )
        if parameter.dtype != torch.float32:
            kind = str(parameter.dtype).removeprefix("torch.")
            raise UsageError(f"{name} is {kind}, and the engine computes in float32; convert it with model.float().")


def _require_fitting(model: nn.Module, example_inputs: Any) -> None:
    args, kwargs = copied(*as_call(example_inputs))
    with explaining("The model failed on the example inputs", "pass inputs that model(…) accepts."):
        model(*args, **kwargs)


def _prepared(model: nn.Module, example_inputs: Any) -> tuple[nn.Module, list[tuple[nn.Module, DenseLayer]], list[str]]:
    """The network, its layers, and what the user should know about them."""
    try:
        captured = capture_graph(model, example_inputs)
    except SecateurError as error:
        note = f"Layers are replaced one by one, with nothing folded into them: {error}"
        return model, layers_in_place(model), [note]
    return captured, [(layer, layer) for layer in fold_graph(captured.graph)], [captured.sizes]


def _why_nothing_is_sparse(choices: tuple[LayerChoice, ...]) -> list[str]:
    if not any(choice.sparsity >= FEWEST_ZEROS for choice in choices):
        return [f'No layer has {FEWEST_ZEROS:.0%} zeros or more; they come from secateur.prune(model, "90%").']
    unavailable = why_unavailable()
    return [f"Nothing is sparse: {unavailable}, or install numba."] if unavailable else []
