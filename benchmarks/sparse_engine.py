"""The sparse engine against dense runtimes, end to end, on four networks.

    pip install '.[int8]'
    python benchmarks/sparse_engine.py                                     everything, about half an hour
    python benchmarks/sparse_engine.py --models bert-like --zeros 0.9      some of it
    python benchmarks/sparse_engine.py --no-int8                           without the dense int8 columns

One thread, batch 1, the same inputs; every row is one run in which all alternatives take turns. Times are milliseconds
of processor time. "× best dense" is the time of the best dense float32 runtime over the engine's, with its 95 %
interval; "null control" is that runtime against itself. Every layer has the same share of zeros, chosen by magnitude
from initial weights: zeros cost the same wherever they are. The dense int8 model (post-training, calibrated on noise)
does not depend on zeros; it is what a sparse float32 model has to beat from here on.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from plan_speed_models import SUBJECTS
from torch import Tensor, nn

import secateur
from secateur.bench.clocks import process_clock
from secateur.bench.machine import this_machine
from secateur.bench.runtimes import RUNTIMES, open_in_onnxruntime, open_in_openvino, torch_threads
from secateur.bench.timing import Timing
from secateur.bench.turns import Turns, time_in_turns
from secateur.examples.encoder import Encoder
from secateur.examples.mobilenet_v2 import MobileNetV2
from secateur.examples.resnet18 import ResNet18
from secateur.formats.exporting import export

DENSE = ("eager", "onnxruntime", "openvino")
INT8 = {"onnx": open_in_onnxruntime, "openvino": open_in_openvino}
PATTERNS = (None, "4x1")
ZEROS = (0.7, 0.8, 0.9, 0.95)
SECONDS = 20.0
LOOKS = 3
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet-18": (ResNet18, lambda: torch.randn(1, 3, 224, 224)),
    "resnet-50": (SUBJECTS["resnet-50"].build, lambda: torch.randn(1, 3, 224, 224)),
    "mobilenet-v2": (MobileNetV2, lambda: torch.randn(1, 3, 224, 224)),
    "bert-like": (lambda: Encoder(768, 12, 3072, 12), lambda: torch.randn(1, 128, 768)),
}
COLUMNS = ("network", "zeros", "pattern", "sparse layers", *DENSE, "int8 onnxruntime", "int8 openvino", "engine")


def main() -> None:
    options = parse_options()
    warnings.simplefilter("ignore")
    print(f"one thread, batch 1, float32 unless it says int8; {this_machine()}\n", flush=True)
    print_row([*COLUMNS, "× best dense", "null control"])
    print_row(["---"] * (len(COLUMNS) + 2))
    for name in options.models:
        build, inputs = NETWORKS[name]
        torch.manual_seed(0)
        model, x = build().eval(), inputs()
        with torch_threads(1), tempfile.TemporaryDirectory() as folder:
            quantised = {} if options.no_int8 else int8_calls(model, x, Path(folder))
            for pattern in PATTERNS:
                for zeros in options.zeros:
                    measure(name, masked(build, zeros, pattern), x, zeros, pattern, quantised)


def masked(build: Callable[[], nn.Module], zeros: float, pattern: str | None) -> nn.Module:
    torch.manual_seed(0)
    model = build().eval()
    return secateur.apply(model, secateur.plan_weights(model, zeros, scope="layer", pattern=pattern))


def int8_calls(model: nn.Module, x: Tensor, folder: Path) -> dict[str, Callable[[], Any]]:
    """The dense model in int8, in each runtime that quantises."""
    calls = {}
    noise = [(torch.randn_like(x), torch.zeros(1)) for _ in range(8)]
    for format_name, open_file in INT8.items():
        suffix = ".onnx" if format_name == "onnx" else ".xml"
        exported = export(
            model,
            x,
            folder / f"int8{suffix}",
            to=format_name,
            int8=True,
            calibration_data=noise,
            eval_data=noise,
            metric=run_through,
            progress=False,
        )
        runtime = "onnxruntime" if format_name == "onnx" else "openvino"
        calls[f"int8 {runtime}"] = open_file(exported.path, 1).bind((x,))
    return calls


def run_through(model: nn.Module, data: Iterable[tuple[Tensor, Tensor]]) -> float:
    """For a speed alone: calibration sees what the metric calls the model on."""
    for inputs, _ in data:
        model(inputs)
    return 0.0


def measure(
    name: str, model: nn.Module, x: Tensor, zeros: float, pattern: str | None, quantised: dict[str, Callable[[], Any]]
) -> None:
    engine = secateur.sparse_engine(model, x, progress=False)
    calls = {runtime: RUNTIMES[runtime].load(model, x, 1).bind(x) for runtime in DENSE}
    calls |= quantised | {"engine": lambda: engine(x)}
    with torch.inference_mode():
        timings = against_the_best_dense(calls)
    sparse = sum(layer.sparse for layer in engine.layers)
    seconds = {name: timing.seconds for name, timing in timings.timings.items()}
    milliseconds = [f"{1e3 * seconds[column]:.1f}" if column in seconds else "–" for column in COLUMNS[4:]]
    share = f"{sparse} of {len(engine.layers)}"
    gain = times_as_fast(timings["engine"])
    print_row([name, f"{zeros:.0%}", pattern or "single", share, *milliseconds, gain, str(timings.control)])


def against_the_best_dense(calls: dict[str, Callable[[], Any]]) -> Turns:
    """With ratios to the quickest dense float32 runtime."""
    look = time_in_turns({runtime: calls[runtime] for runtime in DENSE}, clock=process_clock, max_seconds=1.0)
    best = quickest(look)
    for _ in range(LOOKS):
        timings = time_in_turns({best: calls[best], **calls}, clock=process_clock, max_seconds=SECONDS)
        if timings[quickest(timings)].high >= 1:  # no other is faster beyond the noise
            break
        best = quickest(timings)
    return timings


def quickest(timings: Turns) -> str:
    return min(DENSE, key=lambda runtime: timings[runtime].seconds)


def times_as_fast(timing: Timing) -> str:
    return f"{1 / timing.ratio:.2f} [{1 / timing.high:.2f}, {1 / timing.low:.2f}]"


def print_row(cells: list[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--zeros", nargs="+", type=float, default=list(ZEROS))
    parser.add_argument("--no-int8", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
