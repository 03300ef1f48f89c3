"""Planning and cutting half of the channels: secateur beside torch-pruning, on 26 models.

    pip install torch-pruning==1.6.1 transformers timm
    python benchmarks/plan_speed.py                                  everything, about twenty minutes
    python benchmarks/plan_speed.py --models resnet-50 bert-12       some of the models
    python benchmarks/plan_speed.py --skip-torch-pruning             secateur and its null control alone

Each turn takes a fresh copy of the model and does the whole job once: find what is coupled, rank by l1, cut. Seconds
are CPU seconds of one thread, so that other programs disturb little. The libraries take turns, forwards and then
backwards; "null" is a second series of secateur's own. A ratio is that of the medians, with the smallest and the
largest ratio of a single turn. Both libraries have to arrive at a model that runs; the parameters left are shown, as
equal numbers mean that the work was equal.

secateur runs with its defaults, so `apply` tries the plan out before it cuts. torch-pruning has no such step.
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import signal
import statistics
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from plan_speed_models import SUBJECTS, Subject, llama_1b_on_meta
from torch import nn

import secateur
from secateur.bench.memory import peak_extra_megabytes

AMOUNT = 0.5
LIMIT_SECONDS = 120
MEMORY_SUBJECTS = ("resnet-50", "vit-b16", "bert-12")
INSTALL = "pip install torch-pruning==1.6.1 transformers timm"

Seconds = list[float]


def main() -> None:
    options = parse_options()
    run_on_one_thread()
    if options.memory_of:
        print(*measure_memory(SUBJECTS[options.memory_of]))
        return
    subjects = [SUBJECTS[name] for name in options.models]
    against_torch_pruning = not options.skip_torch_pruning
    require_libraries(subjects, against_torch_pruning)
    print(f"torch {torch.__version__}, one thread, {AMOUNT:.0%} of the channels, medians of {options.repeats} turns\n")
    print_head()
    outcomes = {}
    for subject in subjects:
        outcomes[subject.name] = race(subject, options.repeats, against_torch_pruning)
        print_row(subject, outcomes[subject.name])
    print_ratios(outcomes)
    if {"bert-12", "bert-48"} <= outcomes.keys():
        print_depth(outcomes["bert-12"], outcomes["bert-48"])
    if any(subject.library == "transformers" for subject in subjects):
        print_llama(options.repeats)
    print_memory([subject for subject in subjects if subject.name in MEMORY_SUBJECTS])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time planning and cutting half of the channels.")
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, default=list(SUBJECTS), metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip-torch-pruning", action="store_true")
    parser.add_argument("--memory-of", choices=SUBJECTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats has to be 1 or more")
    return options


def run_on_one_thread() -> None:
    """CPU time counts every thread. OpenMP reads its variable as it is loaded, so the script may have to start anew."""
    if os.environ.get("OMP_NUM_THREADS") != "1":
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, {**os.environ, "OMP_NUM_THREADS": "1"})
    torch.set_num_threads(1)


def require_libraries(subjects: list[Subject], against_torch_pruning: bool) -> None:
    try:
        if against_torch_pruning:
            import torch_pruning  # noqa: F401
        libraries = {subject.library for subject in subjects}
        if "timm" in libraries:
            import timm  # noqa: F401
        if "transformers" in libraries:
            import transformers

            transformers.utils.logging.set_verbosity_error()
    except ImportError as error:
        raise SystemExit(f"{error.name} is missing: {INSTALL}, or see --skip-torch-pruning and --models.") from error


# The two libraries


def with_secateur(model: nn.Module, inputs: Any) -> None:
    secateur.apply(model, secateur.plan_channels(model, inputs, AMOUNT))


def with_torch_pruning(model: nn.Module, inputs: Any) -> None:
    """As its examples do it: no rounding, the classifier's outputs stay, and whole heads go where there are heads."""
    import torch_pruning as tp

    classifier = model.get_classifier() if hasattr(model, "get_classifier") else model.classifier
    attentions = [(module, queries(module)) for module in model.modules() if queries(module)]
    pruner = tp.pruner.MagnitudePruner(
        model,
        inputs,
        importance=tp.importance.MagnitudeImportance(p=1),
        pruning_ratio=AMOUNT,
        ignored_layers=[classifier],
        num_heads={layer: module.num_attention_heads for module, layers in attentions for layer in layers},
        prune_num_heads=True,
        prune_head_dims=False,
        head_pruning_ratio=AMOUNT,
        output_transform=lambda output: getattr(output, "logits", output).sum(),
        # Its defaults for these are shared between all pruners, which would keep every earlier model alive.
        in_channel_groups={},
        out_channel_groups={},
    )
    pruner.step()
    for module, layers in attentions:
        module.num_attention_heads = pruner.num_heads[layers[0]]


def queries(module: nn.Module) -> list[nn.Module]:
    """The layers that compute queries, keys and values, if the module is an attention of the transformers library."""
    if not hasattr(module, "num_attention_heads"):
        return []
    names = ("query", "key", "value", "q_proj", "k_proj", "v_proj")
    return [getattr(module, name) for name in names if hasattr(module, name)]


# The race


@dataclass
class Outcome:
    """The seconds of every turn, by contestant; and, where one did not finish, what happened instead."""

    seconds: dict[str, Seconds] = field(default_factory=dict)
    parameters_left: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def ratio(self, name: str, to: str) -> str:
        """The ratio of the medians, and the extremes over the turns that both took."""
        if name not in self.seconds or to not in self.seconds:
            return "–"
        single = [a / b for a, b in zip(self.seconds[name], self.seconds[to], strict=False)]
        return f"{self.median(name) / self.median(to):.2f} ({min(single):.2f}–{max(single):.2f})"


def race(subject: Subject, repeats: int, against_torch_pruning: bool) -> Outcome:
    torch.manual_seed(0)
    model, inputs = subject.build().eval(), subject.inputs()
    contestants: dict[str, Callable[[nn.Module, Any], None]] = {"secateur": with_secateur}
    if against_torch_pruning:
        contestants["torch-pruning"] = with_torch_pruning
    contestants["null"] = with_secateur
    turns = dict.fromkeys(contestants, repeats)
    turns["torch-pruning"] = min(repeats, subject.torch_pruning_repeats or repeats)
    forward(model, inputs)
    for name in contestants:  # imports and caches
        take_turn(contestants[name], small_model(), torch.randn(1, 3, 8, 8))
    outcome = Outcome()
    for turn in range(repeats):
        for name in contestants if turn % 2 == 0 else reversed(contestants):
            if turn < turns[name] and name not in outcome.failures:
                record_turn(outcome, name, contestants[name], copy.deepcopy(model), inputs)
    return outcome


def record_turn(
    outcome: Outcome, name: str, contestant: Callable[[nn.Module, Any], None], model: nn.Module, inputs: Any
) -> None:
    try:
        seconds = take_turn(contestant, model, inputs)
        forward(model, inputs)
    except OutOfTime:
        outcome.failures[name] = f"needs more than {LIMIT_SECONDS} s"
    except Exception as error:
        outcome.failures[name] = f"fails: {type(error).__name__}: {error}".splitlines()[0][:70]
    else:
        outcome.seconds.setdefault(name, []).append(seconds)
        outcome.parameters_left[name] = sum(parameter.numel() for parameter in model.parameters())


def take_turn(contestant: Callable[[nn.Module, Any], None], model: nn.Module, inputs: Any) -> float:
    gc.collect()
    with time_limit(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        started = time.process_time()
        contestant(model, inputs)
        return time.process_time() - started


class OutOfTime(Exception):
    pass


@contextmanager
def time_limit() -> Iterator[None]:
    """Stops the block after so many CPU seconds."""

    def stop(*_: object) -> None:
        raise OutOfTime

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def forward(model: nn.Module, inputs: Any) -> None:
    with torch.no_grad():
        _ = model(**inputs) if isinstance(inputs, dict) else model(inputs)


def small_model() -> nn.Module:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 8, 3)
            self.classifier = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.classifier(self.convolution(x).mean((2, 3)))

    return Small().eval()


# The tables


def print_head() -> None:
    print(f"{'':<30}{'secateur':>9}{'torch-p.':>10}   {'secateur / torch-p.':<20}{'null / secateur':<20}{'left':>7}")


def print_row(subject: Subject, outcome: Outcome) -> None:
    seconds = [f"{outcome.median(n):.2f} s" if n in outcome.seconds else "–" for n in ("secateur", "torch-pruning")]
    left = outcome.parameters_left
    same = "=" if len(set(left.values())) == 1 else "≠"
    print(
        f"{subject.name:<30}{seconds[0]:>9}{seconds[1]:>10}   {outcome.ratio('secateur', 'torch-pruning'):<20}"
        f"{outcome.ratio('null', 'secateur'):<20}{left.get('secateur', 0) / 1e6:>5.1f}M{same}",
        flush=True,
    )
    for name, failure in outcome.failures.items():
        print(f"{'':<30}{name} {failure}")
    if same == "≠":
        print(f"{'':<30}parameters left: " + ", ".join(f"{name} {count:,}" for name, count in left.items()))


def print_ratios(outcomes: dict[str, Outcome]) -> None:
    """Over the models that both libraries can cut."""
    ratios = {
        name: outcome.median("secateur") / outcome.median("torch-pruning")
        for name, outcome in outcomes.items()
        if {"secateur", "torch-pruning"} <= outcome.seconds.keys() and not outcome.failures
    }
    if ratios:
        worst = max(ratios, key=lambda name: ratios[name])
        print(
            f"\nsecateur / torch-pruning, {len(ratios)} models: median {statistics.median(ratios.values()):.2f}, ",
            end="",
        )
        print(f"worst {ratios[worst]:.2f} ({worst})")


def print_depth(shallow: Outcome, deep: Outcome) -> None:
    print("\ndepth: bert-48 / bert-12, four times the layers")
    for name in ("secateur", "torch-pruning"):
        if name in shallow.seconds and name in deep.seconds:
            merged = Outcome({"shallow": shallow.seconds[name], "deep": deep.seconds[name]})
            print(f"  {name:<14}{merged.ratio('deep', 'shallow')} × the seconds")


def print_llama(repeats: int) -> None:
    """Weights without values cannot be ranked: where a plan is refused, `inspect` stands for all that precedes it."""
    model, inputs = llama_1b_on_meta()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"\nLLaMA of {parameters / 1e9:.2f} billion parameters, on the meta device")

    def plan(model: nn.Module, inputs: Any) -> None:
        secateur.plan_channels(model, inputs, AMOUNT, score="random")

    def inspect(model: nn.Module, inputs: Any) -> None:
        secateur.inspect(model, inputs)

    for call in (plan, inspect):
        try:
            seconds = [take_turn(call, model, inputs) for _ in range(repeats)]
        except secateur.UsageError as error:
            print(f"  {call.__name__:<9}{textwrap.shorten(f'refused: {error}', 85, placeholder='…')}")
        else:
            median, low, high = statistics.median(seconds), min(seconds), max(seconds)
            print(f"  {call.__name__:<9}{median:.2f} s ({low:.2f}–{high:.2f})")


# Memory


def print_memory(subjects: list[Subject]) -> None:
    """Every model in a process of its own, as memory that an earlier one left over would be used again."""
    if not subjects:
        return
    if not Path("/proc/self/clear_refs").exists():
        print("\npeak memory: this system does not reset its high-water mark, so it was not measured")
        return
    print("\npeak of resident memory above the loaded model, as a share of the model's bytes")
    print(f"{'':<14}{'model':>9}{'plan + apply':>20}{'one forward pass':>20}")
    for subject in subjects:
        # Blocks of 64 kB and more go back to the system at once, so that none hide in what was there before.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
        command = [sys.executable, str(Path(__file__)), "--memory-of", subject.name]
        run = subprocess.run(command, env=environment, capture_output=True, text=True)
        if run.returncode:
            print(f"{subject.name:<14}failed: {run.stderr.strip().splitlines()[-1][:70]}")
            continue
        model, job, single = (float(number) for number in run.stdout.split())
        print(f"{subject.name:<14}{model:>6.0f} MB", end="")
        print("".join(f"{extra:>10.0f} MB {extra / model:>6.1%}" for extra in (job, single)), flush=True)


def measure_memory(subject: Subject) -> tuple[float, float, float]:
    """MB of the model, and at most beyond it: of planning and applying, and of one forward pass.

    Resident memory counts what the system handed out, in pages, whoever asked for it: activations of the forward pass
    inside are part of it, and code that is loaded late as well, which a small model's run beforehand takes out. It is
    read from the process itself: `ru_maxrss` cannot be reset, and begins at what the parent process used.
    """
    take_turn(with_secateur, small_model(), torch.randn(1, 3, 8, 8))
    torch.manual_seed(0)
    model, inputs = subject.build().eval(), subject.inputs()
    size = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())) / 1e6
    forward(model, inputs)
    gc.collect()
    single = peak_extra_megabytes(lambda: forward(model, inputs))
    job = peak_extra_megabytes(lambda: with_secateur(model, inputs))
    return size, job, single


if __name__ == "__main__":
    main()
