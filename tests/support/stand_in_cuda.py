"""A stand-in for CUDA under whole models: they move in name only, and its events read the processor's clock."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secateur.bench import devices, runner, runtimes
from secateur.channels.target import single_layer


class StandInEvent:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: StandInEvent) -> float:
        assert self.seconds <= end.seconds
        return max(1e3 * (end.seconds - self.seconds), 1e-6)


def stand_in_for_cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of CUDA, in order."""
    asked: list[str] = []
    real_randn, real_to, real_tensor_to = torch.randn, nn.Module.to, Tensor.to

    def move_model(model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if args != ("cuda",):
            return real_to(model, *args, **kwargs)
        asked.append("model")
        model.on_stand_in = True
        return model

    def move_tensor(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if args != ("cuda",):
            return real_tensor_to(tensor, *args, **kwargs)
        asked.append("inputs")
        return tensor

    def randn(*shape: Any, device: Any = None, **kwargs: Any) -> Tensor:
        if str(device) == "cuda":
            asked.append(f"layer in {kwargs['dtype']}")
            device = "cpu"
        return real_randn(*shape, device=device, **kwargs)

    def device_of(model: nn.Module) -> torch.device:
        return torch.device("cuda" if getattr(model, "on_stand_in", False) else "cpu")

    for module in (devices, runner, runtimes, single_layer):
        monkeypatch.setattr(module, "device_of", device_of)
    cuda = {
        "is_available": lambda: True,
        "get_device_name": lambda: "Stand-in 3000",
        "Event": StandInEvent,
        "synchronize": lambda device=None: asked.append("synchronize"),
        "reset_peak_memory_stats": lambda device: None,
        "memory_allocated": lambda device: 1e6,
        "max_memory_allocated": lambda device: 4.5e6,
    }
    for name, function in cuda.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(nn.Module, "to", move_model)
    monkeypatch.setattr(Tensor, "to", move_tensor)
    monkeypatch.setattr(torch, "randn", randn)
    return asked
