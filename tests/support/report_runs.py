"""Reports of runs for the tests of the page: real ones of a small network, and a made-up one of a large network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch.utils.data import DataLoader

import secateur
from secateur.base.names import LeftAlone
from secateur.bench.sheet import Measurement, Refusal, Sheet, measure
from secateur.examples.small_resnet import SmallResNet
from secateur.pages.gather import report_of, with_sheet
from secateur.pages.run_report import RunReport
from secateur.plans.plan import GroupCut
from tests.support.models import blobs

RUNS: dict[str, dict[str, Any]] = {"channels": {"channels": 0.5}, "zeros": {"amount": 0.8}}
EVIL = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>\"><b>"
EXAMPLE = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def loaders() -> dict[str, Any]:
    """The blobs' four channels of 4 × 4 laid out as one of 8 × 8."""

    def images(examples: int, seed: int) -> torch.utils.data.TensorDataset:
        pixels, labels = blobs(examples, seed).tensors
        return torch.utils.data.TensorDataset(pixels.reshape(-1, 1, 8, 8), labels)

    return {
        "train_data": DataLoader(images(256, 0), 32, shuffle=True),
        "eval_data": DataLoader(images(512, 1), 256),
        "progress": False,
    }


@cache
def trained() -> secateur.Result:
    torch.manual_seed(0)
    return secateur.train(SmallResNet((8, 16), classes=4), 6, **loaders())


@cache
def pruned(name: str) -> secateur.Result:
    return secateur.prune(trained().model, finetune=3, **RUNS[name], **loaders())


@cache
def sheet(*runtimes: str) -> Sheet:
    """Measured for real, though not for as long as a verdict takes."""
    models = {"dense": trained().model, **{name: pruned(name).model for name in RUNS}}
    return measure(models, EXAMPLE, runtimes=runtimes, batches=(1, 8), max_seconds=0.2, progress=False)


@cache
def real_report(name: str, *runtimes: str) -> RunReport:
    result = pruned(name)
    settings = {"task": "blobs.py", "finetune": 3, "seed": 0, "ranking": {"scope": "global", "keep": ["classifier"]}}
    return with_sheet(report_of(result, name, settings), sheet(*runtimes or ("eager",)))


def large_report(like: RunReport, groups: int = 150) -> RunReport:
    """Residual blocks of two convolutions and attention heads, as a deep network has them, with long names."""
    cuts: list[GroupCut] = []
    stages = [f"encoder.stages.{i // 30}.output_projection" for i in range(0, groups, 30)]
    for i in range(groups):
        stage, block = divmod(i, 30)
        prefix = f"encoder.stages.{stage}.blocks.{block}"
        if block == 0:
            own = range(stage * 30 + 1, min(groups, stage * 30 + 30))
            feeds = [f"encoder.stages.{stage}.blocks.{j % 30}.attention.query" for j in own]
            layers = (stages[stage], *feeds, *stages[stage + 1 : stage + 2])
            cuts.append(GroupCut(stages[stage], layers, "channels", 128 << stage, 80 << stage, 90_000, 4_000_000))
        else:
            layers = (f"{prefix}.attention.query", f"{prefix}.attention.output")
            kind, before = ("heads", 12) if block % 2 else ("channels", 64 << stage)
            cuts.append(GroupCut(layers[0], layers, kind, before, max(1, before // (1 + block % 5)), 1234, 56_789))
    left_alone = tuple(LeftAlone(f"head.{i}", "the model's output keeps its shape") for i in range(3))
    layers_left = {cut.name: (cut.after, cut.before) for cut in cuts}
    return replace(like, name="large", groups=tuple(cuts), left_alone=left_alone, layers=layers_left)


def evil_report(honest: RunReport) -> RunReport:
    """With a name that would run as a program wherever a name can be."""
    group = replace(honest.groups[0], name=EVIL, layers=(EVIL, *honest.groups[0].layers), kind=EVIL)
    return replace(
        honest,
        name=EVIL,
        metric_name=EVIL,
        cut=EVIL,
        target=EVIL,
        records=tuple(replace(record, stop=EVIL) for record in honest.records),
        layers={EVIL: (1, 2), **dict(list(honest.layers.items())[1:])},
        groups=(group, *honest.groups[1:]),
        left_alone=(LeftAlone(EVIL, EVIL),),
        sheet=evil_sheet(honest.sheet),
        settings={EVIL: EVIL, "task": EVIL},
        versions={EVIL: EVIL, "secateur": EVIL},
        finished_at=EVIL,
    )


def evil_sheet(honest: Sheet | None) -> Sheet:
    assert honest is not None
    names = {name: f"{EVIL} {name}" for name in honest.footprints}

    def renamed(by_model: Mapping[str, Any]) -> dict[str, Any]:
        return {names[name]: value for name, value in by_model.items()}

    def evil(item: Measurement) -> Measurement:
        comparison = replace(
            item.comparison,
            baseline=names[honest.baseline],
            timings=renamed(item.comparison.timings),
            runtime=EVIL,
            precision=EVIL,
            notes={EVIL: EVIL},
            machine=replace(item.comparison.machine, cpu=f"{EVIL}, another"),
        )
        return replace(item, comparison=comparison, peak_megabytes=renamed(item.peak_megabytes))

    return replace(
        honest,
        baseline=names[honest.baseline],
        footprints=renamed(honest.footprints),
        measurements=tuple(map(evil, honest.measurements)),
        refusals=(Refusal(EVIL, EVIL, None, EVIL),),
        machine=replace(honest.machine, cpu=EVIL),
    )
