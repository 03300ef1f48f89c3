"""`study_hardware`: the parts of `secateur hardware`, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from secateur import __version__
from secateur.base import SecateurError, moment_now, steps
from secateur.bench import KINDS, Timer, this_machine, time_in_turns, torch_threads
from secateur.examples import Encoder, MobileNetV2, ResNet18, SmallResNet
from secateur.studies.machine.ablation import time_ablation
from secateur.studies.machine.hardware_report import HardwareReport
from secateur.studies.machine.probes import runtimes_here
from secateur.studies.machine.sparse_formats import (
    BATCH_FIRST,
    FORMATS,
    SPARSITIES,
    FormatCurve,
    refused_formats,
    time_formats,
)
from secateur.studies.machine.structured import (
    COUNTS,
    Network,
    NetworkCut,
    cut_network,
    time_counts,
    time_layer_cuts,
    time_networks,
)
from secateur.studies.machine.tensor_cores import what_is_missing

MOBILE = "MobileNetV2-like"
NETWORKS = (
    Network("SmallResNet", SmallResNet, partial(torch.randn, 8, 1, 28, 28)),
    Network("ResNet-18", ResNet18, partial(torch.randn, 1, 3, 112, 112)),
    # Every kind of block once or twice: what is exported to ONNX six times should not be deep.
    Network(MOBILE, partial(MobileNetV2, repeats=(1, 1, 1, 2, 1, 1, 1)), partial(torch.randn, 1, 3, 112, 112)),
    Network("BERT-like", Encoder, partial(torch.randn, 1, 64, 384)),
)
SHARES = {"75 % kept": 0.75, "50 % kept": 0.5, "25 % kept": 0.25}
TIDY = 8
"""The counts of the versions above are multiples of this, so that the cut alone is measured."""
UNTIDY = {"counts as they come": (0.7, 1), "multiples of 16": (0.7, 16)}
HALVED_WIDTH = 256


@dataclass(frozen=True)
class Extent:
    """How much is measured. The default takes about three minutes on two cores."""

    sizes: tuple[int, ...] = (256, 1024)
    batches: tuple[int, ...] = (1, 16, 128)
    sparsities: tuple[float, ...] = SPARSITIES
    split_up: tuple[int, int, float] = (768, 128, 0.9)
    """Size, batch and share of zeros of the product whose time is split up."""
    networks: tuple[Network, ...] = NETWORKS
    counts: tuple[int, ...] = COUNTS
    runtimes: tuple[str, ...] | None = None
    """By default those that are installed."""


def study_hardware(
    extent: Extent | None = None, timer: Timer = time_in_turns, *, progress: bool = True
) -> HardwareReport:
    extent = extent or Extent()
    runtimes = extent.runtimes or runtimes_here()
    started = time.monotonic()
    machine = this_machine()  # before the load that measuring makes
    moment = moment_now()
    products = [(size, batch) for size in extent.sizes for batch in extent.batches]
    total = len(products) + 1 + len(runtimes) * (2 + len(extent.networks) + len(KINDS)) + len(extent.networks)
    refused = refused_formats()
    usable = [name for name in FORMATS if name not in refused]
    notes = [f"{name}: left out. {why}" for name, why in refused.items()]
    with torch_threads(1), torch.random.fork_rng(devices=[]), steps(total, "hardware", progress) as begin:
        formats: list[FormatCurve] = []
        for size, batch in products:
            begin(f"zeros in {size} × {size}, batch {batch}")
            formats += time_formats(size, batch, timer, extent.sparsities, usable)
        begin("where the time goes")
        has_csr = {BATCH_FIRST, "CSR, W @ X"} <= set(usable)
        ablations = (time_ablation(*extent.split_up, timer),) if has_csr else ()
        layers = []
        for kind in ("convolution", "linear"):
            for runtime in runtimes:
                begin(f"half of a {kind}, {runtime}")
                layers.append(time_layer_cuts(kind, runtime, HALVED_WIDTH, timer))
        cuts = [cut for network in extent.networks for cut in _time_network(network, runtimes, timer, notes, begin)]
        counts = []
        for kind in KINDS:
            for runtime in runtimes:
                begin(f"{kind} counts, {runtime}")
                counts.append(time_counts(kind, runtime, timer, extent.counts))
    return HardwareReport(
        version=__version__,
        measured_at=moment,
        seconds=time.monotonic() - started,
        machine=machine,
        formats=tuple(formats),
        ablations=ablations,
        tensor_cores=what_is_missing(),
        layers=tuple(layers),
        networks=tuple(cut for cut in cuts if cut.version not in UNTIDY),
        rounding=tuple(cut for cut in cuts if cut.version in UNTIDY),
        counts=tuple(counts),
        notes=tuple(notes),
    )


def _time_network(
    network: Network, runtimes: tuple[str, ...], timer: Timer, notes: list[str], begin: Callable[[str], None]
) -> list[NetworkCut]:
    """What a runtime cannot load is left out and noted: the other parts do not depend on it."""
    versions = {name: (kept, TIDY) for name, kept in SHARES.items()} | (UNTIDY if network.name == MOBILE else {})
    begin(f"cutting {network.name}")
    models = cut_network(network, versions)
    kept = {name: share for name, (share, _) in versions.items()}
    cuts: list[NetworkCut] = []
    for runtime in runtimes:
        begin(f"{network.name}, {runtime}")
        try:
            cuts += time_networks(network, models, kept, runtime, timer)
        except SecateurError as error:
            notes.append(f"{network.name} in {runtime} was left out: {error}")
    return cuts
