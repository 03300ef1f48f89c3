"""A model in a runtime, ready to be timed: loaded once, and checked to compute what eager PyTorch computes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from secateur.base import SecateurError, evaluating, in_brief
from secateur.bench.devices import ON_CUDA, device_of
from secateur.bench.differences import allowed_difference, largest_difference
from secateur.bench.memory import peak_extra_megabytes
from secateur.bench.runtimes import RUNTIMES, Loaded, Runtime
from secateur.bench.turns import BoundCall


class Runner:
    """A model under a name in a runtime."""

    def __init__(self, name: str, model: nn.Module, runtime: Runtime, example_inputs: Any, threads: int) -> None:
        self.name, self.model, self.runtime, self.threads = name, model, runtime, threads
        with self._one_sentence():
            self.loaded: Loaded = runtime.load(model, example_inputs, threads)

    @property
    def device(self) -> torch.device:
        """Where the runtime computes, not where the model lies."""
        return device_of(self.model) if self.runtime.name in ON_CUDA else torch.device("cpu")

    def ready(self, example_inputs: Any, *, memory: bool = False) -> Ready:
        """Runs the model once on these inputs, and refuses numbers that are not eager's.

        Args:
            example_inputs: to run on.
            memory: whether to measure the peak of that run, which takes longer than a small model.
        """
        outputs: list[Any] = []
        with self._one_sentence():
            # Eager PyTorch, too: what it sets up once shall not count in the memory of the pass after this one.
            eager = RUNTIMES["eager"].load(self.model, example_inputs, self.threads).outputs(example_inputs)
            call = self.loaded.bind(example_inputs)
            peak = None
            if memory:
                peak = peak_extra_megabytes(lambda: outputs.append(call()), self.device)
            else:
                outputs.append(call())
            if self.runtime.name != "eager":
                self._require_same(eager, self.loaded.numbers(outputs[0]))
        return Ready(self, call, peak, self.loaded.note(example_inputs))

    def _require_same(self, eager: Sequence[np.ndarray], numbers: Sequence[np.ndarray]) -> None:
        difference = largest_difference(eager, numbers)
        if difference > allowed_difference(self.loaded.precision):
            by = f"by {difference:.1e} of the largest" if np.isfinite(difference) else "in number, shape or NaNs"
            raise SecateurError(
                f"It computes something else there: the outputs differ from eager PyTorch's {by}. "
                "Find out why before you deploy it."
            )

    @contextmanager
    def _one_sentence(self) -> Iterator[None]:
        """In evaluation mode. Runtimes and the user's code raise anything at all."""
        where = f"{self.name} in {self.runtime.name}"
        try:
            with evaluating(self.model):
                yield
        except SecateurError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:
            raise SecateurError(
                f"{where}: It cannot run ({in_brief(error)}). Choose another runtime, or other inputs."
            ) from error


@dataclass(frozen=True)
class Ready:
    """A runner's call on certain inputs."""

    runner: Runner
    call: BoundCall
    peak_megabytes: float | None
    """What the first pass took beyond what was there before; None where it was not asked for or cannot be told."""
    note: str
    """What the runtime says of it; empty for nothing."""
