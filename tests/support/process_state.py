"""All of the process, or of this thread, that secateur may touch on the way: it is equal before and after."""

from __future__ import annotations

import gc
import logging
import random
import signal
import sys
import warnings
from typing import Any

import numpy as np
import torch
import torch._tensor
import torch.functional
import torch.nn.functional
import torch.nn.modules.module as module_hooks
from torch._dynamo import eval_frame

_WRAPPER_CHECKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
_HOOKS = [name for name in vars(module_hooks) if name.startswith("_global_") and name.endswith("_hooks")]


def process_state() -> dict[str, object]:
    """By name; compare two of them with `==`."""
    return {
        "default dtype": torch.get_default_dtype(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "mha fast path": torch.backends.mha.get_fastpath_enabled(),
        "cudnn": torch.backends.cudnn.enabled,
        "compiler stance": repr(eval_frame._stance),
        "threads": torch.get_num_threads(),
        "deterministic": (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.benchmark,
        ),
        "random numbers": _digest_of_random_states(),
        "module hooks": {name: list(getattr(module_hooks, name)) for name in _HOOKS},
        "patched": _what_is_patched(),
        "warnings": list(warnings.filters),
        "logging": (logging.root.manager.disable, logging.root.level),
        "streams": (id(sys.stdout), id(sys.stderr)),
        "garbage collection": gc.isenabled(),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)},
    }


def _digest_of_random_states() -> tuple[int, int, int]:
    numpy_state: Any = np.random.get_state()
    return (
        hash(torch.get_rng_state().numpy().tobytes()),
        hash((numpy_state[1].tobytes(), *numpy_state[2:])),
        hash(random.getstate()),
    )


def _what_is_patched() -> dict[str, int]:
    homes = (torch.nn.functional, torch._tensor, torch.functional)
    found = {
        f"{home.__name__}.{name}": getattr(home, name)
        for home in homes
        for name in _WRAPPER_CHECKS
        if hasattr(home, name)
    }
    found |= {
        "Tensor.__len__": torch.Tensor.__dict__["__len__"],
        "autograd.Function.apply": torch.autograd.Function.__dict__["apply"],
        "Module.__call__": torch.nn.Module.__dict__["__call__"],
        "Module.__setattr__": torch.nn.Module.__dict__["__setattr__"],
        "warnings.showwarning": warnings.showwarning,
    }
    return {name: id(thing) for name, thing in found.items()}
