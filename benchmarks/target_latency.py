"""Pruning to a latency: asked, predicted and measured, on four networks, and the accuracy of one of them.

    pip install '.[onnxruntime]'
    python benchmarks/target_latency.py                          everything, about fifteen minutes on two cores
    python benchmarks/target_latency.py --models resnet-18       some of the networks
    python benchmarks/target_latency.py --no-training            the reference CNN as it is initialised

Each network is planned to 0.75, 0.5 and 0.33 of its dense latency, on one thread with batch 1. "predicted" is what the
table of layers says of the plan, calibrated on the dense network alone; "measured" is the cut network beside the dense
one, confirmed after it was chosen, with its 95 % interval and the null control. The layers' times are measured anew in
every run.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from plan_speed_models import SUBJECTS
from torch import Tensor, nn
from torch.utils.data import DataLoader

import secateur
from secateur.bench.machine import this_machine
from secateur.examples.encoder import Encoder
from secateur.examples.fashion_mnist import load_fashion_mnist
from secateur.examples.mobilenet_v2 import MobileNetV2
from secateur.examples.resnet18 import ResNet18
from secateur.examples.small_resnet import SmallResNet
from secateur.plans.outcome import TargetUnreachable

TARGETS = (0.75, 0.5, 0.33)
TOLERANCE = 0.03
EPOCHS, FINETUNE = 10, "15%"
RECIPE = secateur.Recipe(lr=3e-3)


@dataclass(frozen=True)
class Network:
    build: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]


NETWORKS = {
    "reference CNN": Network(SmallResNet, lambda: torch.randn(1, 1, 28, 28)),
    "resnet-18": Network(ResNet18, lambda: torch.randn(1, 3, 224, 224)),
    "resnet-50": Network(SUBJECTS["resnet-50"].build, lambda: torch.randn(1, 3, 224, 224)),
    "mobilenet-v2": Network(MobileNetV2, lambda: torch.randn(1, 3, 224, 224)),
    "bert-like": Network(lambda: Encoder(768, 12, 3072, 12), lambda: torch.randn(1, 128, 768)),
}


def main() -> None:
    options = parse_options()
    torch.manual_seed(0)
    print(f"{options.runtime}, one thread, batch 1; {this_machine()}\n")
    print(
        f"{'':<14}{'asked':>6}{'predicted':>11}{'measured':>10}  {'interval':<15}{'null control':<20}{'error':>7}  of"
    )
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SECATEUR_CACHE"] = folder
        for name in options.models:
            model = NETWORKS[name].build().eval()
            training = name == "reference CNN" and not options.no_training
            if training:
                model, loaders = trained(model)
            for target in TARGETS:
                plan = attempt(name, model, NETWORKS[name].inputs(), target, options.runtime)
                missed += plan is None or not 1 - TOLERANCE <= plan.outcome.reached / plan.outcome.asked <= 1
                if training and plan is not None:
                    recover(model, plan, loaders)
    print(
        f"\n{missed} of {len(TARGETS) * len(options.models)} targets missed: above, or more than {TOLERANCE:.0%} below."
    )


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Prune four networks to a measured latency.")
    default = [name for name in NETWORKS if name != "resnet-50"]
    parser.add_argument("--models", nargs="+", choices=NETWORKS, default=default, metavar="MODEL")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--no-training", action="store_true")
    return parser.parse_args()


def attempt(name: str, model: nn.Module, inputs: Tensor, target: float, runtime: str) -> secateur.Plan | None:
    started = time.perf_counter()
    try:
        plan = secateur.plan_channels(model, inputs, target=f"latency={target}", runtime=runtime)
    except TargetUnreachable as error:
        print(f"{name:<14}{target:>6.2f}  {error}")
        return None
    met, seconds = plan.outcome, time.perf_counter() - started
    assert met is not None
    low, ratio, high = met.control
    print(
        f"{name:<14}{target:>6.2f}{met.predicted / met.dense:>11.3f}{met.reached / met.dense:>10.3f}  "
        f"[{met.low / met.dense:.3f}, {met.high / met.dense:.3f}] {f'{ratio:.3f} [{low:.3f}, {high:.3f}]':<21}"
        f"{met.predicted / met.reached - 1:>+6.1%}  {1e3 * met.dense:.2f} ms; {len(met.attempts)} candidates, "
        f"{seconds:.0f} s",
        flush=True,
    )
    return plan


def trained(model: nn.Module) -> tuple[nn.Module, dict[str, DataLoader]]:
    train_set, test_set = load_fashion_mnist()
    loaders = {
        "train_data": DataLoader(train_set, 64, shuffle=True, drop_last=True),
        "eval_data": DataLoader(test_set, 500),
    }
    return secateur.train(model, EPOCHS, recipe=RECIPE, progress=False, **loaders).model, loaders


def recover(model: nn.Module, plan: secateur.Plan, loaders: dict[str, DataLoader]) -> None:
    """What the accuracy is after fine-tuning for 15 % of the epochs."""
    met = plan.outcome
    assert met is not None
    result = secateur.prune(
        model,
        target=f"latency={met.reached / met.dense:.4f}",
        runtime="onnxruntime",
        example_inputs=plan.example_inputs,
        finetune=FINETUNE,
        original_epochs=EPOCHS,
        recipe=RECIPE,
        progress=False,
        **loaders,
    )
    print(
        f"{'':<14}accuracy {100 * result.before:.1f} % dense, {100 * (result.right_after or 0):.1f} % right after the "
        f"cut, {100 * result.after:.1f} % after fine-tuning for {FINETUNE} of the epochs",
        flush=True,
    )


if __name__ == "__main__":
    main()
