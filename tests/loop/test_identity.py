"""What changes a result makes another run: a folder that holds one is not taken for it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import secateur
from secateur.channels.sensitivity_curves import GroupCurve, Sensitivity
from secateur.loop.task import accuracy
from tests.support.models import ConvNet
from tests.support.report_runs import loaders as report_loaders
from tests.test_earlier_files import FILES, dense

Loaders = dict[str, DataLoader]


def doubled_loss(model: nn.Module, batch: Any) -> Tensor:
    return 2 * nn.functional.cross_entropy(model(batch[0]), batch[1])


def halved_accuracy(model: nn.Module, data: Iterable[Any]) -> float:
    return accuracy(model, data) / 2


def mean_square(name: str, weight: Tensor) -> Tensor:
    return weight.detach().square()


def curves(at_half: float) -> Sensitivity:
    points = ((0.5, at_half),)
    groups = [("conv", 8), ("hidden", 32)]
    return Sensitivity("accuracy", 0.9, tuple(GroupCurve(n, n, (n,), (n,), units, points) for n, units in groups))


def inputs(seed: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 4, 4, 4, generator=torch.Generator().manual_seed(seed))


ACTIVATION = {"channels": 0.5, "score": "activation"}
CHANGES = [
    ({"channels": 0.5}, {"iterations": 2}, "iterations was 1, now 2"),
    ({**ACTIVATION, "data": [inputs(0)]}, {"data": [inputs(1)]}, "data was"),
    ({**ACTIVATION, "data": [inputs(0)]}, {"data": [inputs(0), inputs(1)]}, "data was"),
    ({**ACTIVATION, "example_inputs": inputs(0)}, {"example_inputs": inputs(1)}, "example_inputs was"),
    ({"channels": 0.5, "example_inputs": inputs(0)}, {"example_inputs": inputs(0, 3)}, "example_inputs was"),
    ({"channels": 0.5}, {"example_inputs": inputs(0)}, "example_inputs was None"),
    ({"target": "macs=60%", "sensitivity": curves(0.8)}, {"sensitivity": curves(0.5)}, "sensitivity was"),
    ({"channels": 0.5, "score": {"conv": range(8)}}, {"score": {"conv": range(1, 9)}}, "score was"),
    ({"channels": 0.5}, {"outputs": [0]}, r"outputs was \[\], now \['0'\]"),
    ({"channels": 0.5}, {"keep_indices": {"conv": [0, 1]}}, "keep_indices was None"),
    ({"target": "macs=60%"}, {"target": "params=60%"}, "target was 'macs=60%', now 'params=60%'"),
    ({"target": "macs=60%"}, {"scope": "layer"}, "scope was 'global', now 'layer'"),
    ({"amount": 0.5}, {"loss": doubled_loss}, "loss was 'classification_loss', now 'doubled_loss'"),
    ({"amount": 0.5}, {"metric": halved_accuracy}, "metric was 'accuracy', now 'halved_accuracy'"),
    ({"amount": 0.5}, {"score": mean_square}, "score was 'l1', now 'mean_square'"),
    ({"amount": 0.5}, {"scope": "layer"}, "scope was 'global', now 'layer'"),
    ({"amount": 0.5}, {"include": ["norm"]}, r"include was \[\], now \['norm'\]"),
    ({"amount": 0.5, "per_layer": {"conv": 0.2, "*": 0.3}}, {"per_layer": {"*": 0.3, "conv": 0.2}}, "per_layer was"),
    ({"amount": 0.5}, {"amount": None, "channels": 0.5}, "amount was 0.5, now None, channels was None, now 0.5"),
]


@pytest.mark.parametrize(("options", "change", "message"), CHANGES, ids=[message for _, _, message in CHANGES])
def test_another_value_is_another_run(
    tmp_path: Path, loaders: Loaders, options: dict[str, Any], change: dict[str, Any], message: str
) -> None:
    def run(**options: Any) -> secateur.Result:
        torch.manual_seed(0)
        amount = options.pop("amount", None)
        return secateur.prune(
            ConvNet(), amount, train=0.5, repair=0, finetune=0, progress=False, run_dir=tmp_path, **loaders, **options
        )

    first = run(**options)
    assert run(**options).records == first.records
    with pytest.raises(secateur.UsageError, match=message):
        run(**{**options, **change})


def test_an_example_of_the_same_shape_is_the_same_run(tmp_path: Path, loaders: Loaders) -> None:
    """Only its shape counts, and scripts often draw its values anew."""
    model, options = (
        ConvNet(),
        {"channels": 0.5, "repair": 0, "finetune": 0, "progress": False, "run_dir": tmp_path, **loaders},
    )
    first = secateur.prune(model, example_inputs=inputs(0), **options)
    assert secateur.prune(model, example_inputs=inputs(1), **options).records == first.records


EARLIER = [
    ({}, None),
    ({"loss": doubled_loss}, None),  # which 0.1.0 did not write down
    ({"repair": 0}, None),
    ({"repair": 64}, "repair was 0, now 64"),
    ({"channels": 0.6}, "channels was 0.5, now 0.6"),
    ({"score": "l2"}, "score was 'l1', now 'l2'"),
    ({"seed": 1}, "seed was 0, now 1"),
    ({"channels": None, "target": "macs=50%"}, "target was None, now 'macs=50%'"),
]


@pytest.mark.parametrize(("change", "message"), EARLIER)
def test_of_a_folder_of_version_0_1_0_what_it_says_is_compared(
    tmp_path: Path, change: dict[str, Any], message: str | None
) -> None:
    folder = shutil.copytree(FILES / "run-finished", tmp_path / "run")
    options = {"channels": 0.5, "finetune": 1, "run_dir": folder, "progress": False, **report_loaders(), **change}
    if message is None:
        assert len(secateur.prune(dense(), **options).records) == 3
    else:
        with pytest.raises(secateur.UsageError, match=message):
            secateur.prune(dense(), **options)


def test_options_of_a_folder_of_version_0_1_0_are_compared(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "run-finished", tmp_path / "run")
    stored = json.loads((folder / "run.json").read_text())
    stored["settings"]["ranking"] |= {"per_layer": {"stem": 0.25}, "keep": ["head"], "multiple_of": 8}
    (folder / "run.json").write_text(json.dumps(stored))
    options = {"channels": 0.5, "finetune": 1, "run_dir": folder, "progress": False, **report_loaders()}
    written = {"per_layer": {"stem": "25%"}, "keep": ["head"], "multiple_of": 8}
    assert len(secateur.prune(dense(), **options, **written).records) == 3
    for name in written:
        with pytest.raises(secateur.UsageError, match=f"{name} was"):
            secateur.prune(dense(), **options, **{key: value for key, value in written.items() if key != name})


def test_a_call_that_fails_leaves_no_folder(tmp_path: Path, loaders: Loaders) -> None:
    folder = tmp_path / "run"
    options = {"repair": 0, "finetune": 0, "progress": False, "run_dir": folder, **loaders}
    for wrong in ({"channels": 0.5, "keep": ["hiden"]}, {"target": "macs=0.1%"}, {"amount": 0.5, "keep": ["hiden"]}):
        with pytest.raises(secateur.UsageError):
            secateur.prune(ConvNet(), **options, **wrong)
        assert not folder.exists()


def test_a_run_that_has_passed_no_stop_may_still_change(tmp_path: Path, loaders: Loaders) -> None:
    def interrupted(model: nn.Module, data: Iterable[Any]) -> float:
        raise KeyboardInterrupt

    options = {"repair": 0, "finetune": 0, "progress": False, "run_dir": tmp_path, **loaders}
    with pytest.raises(KeyboardInterrupt):
        secateur.prune(ConvNet(), 0.5, metric=interrupted, **options)
    assert (tmp_path / "run.json").exists()
    assert secateur.prune(ConvNet(), 0.6, **options).masks.sparsity == pytest.approx(0.6, abs=0.01)
