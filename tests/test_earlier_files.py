"""What an earlier version wrote still loads: plans, masks, checkpoints, engines, run folders, reports, sensitivities.

The files in `earlier_files` were made by version 0.1.0 before its modules moved; nothing here writes them anew.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import secateur
from secateur.channels.sensitivity_curves import Sensitivity
from secateur.examples.small_resnet import SmallResNet
from secateur.pages.run_report import RunReport
from tests.support.report_runs import EXAMPLE, loaders

FILES = Path(__file__).parent / "earlier_files"
OUTPUTS: dict[str, Any] = json.loads((FILES / "outputs.json").read_text())


def network() -> SmallResNet:
    return SmallResNet((8, 16), classes=4).eval()


def dense() -> nn.Module:
    return secateur.load(FILES / "dense", network)


def assert_outputs(model: nn.Module, name: str, tolerance: float = 1e-6) -> None:
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(EXAMPLE), torch.tensor(OUTPUTS[name]), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["dense", "channels", "zeros", "run-finished"])
def test_checkpoints(name: str) -> None:
    assert_outputs(secateur.load(FILES / name, network), name)


def test_plan() -> None:
    plan = secateur.Plan.load(FILES / "plan.json")
    assert_outputs(secateur.apply(dense(), plan, example_inputs=EXAMPLE), "channels")
    assert plan == secateur.plan_channels(dense(), EXAMPLE, 0.5)


def test_plan_that_met_a_target() -> None:
    plan = secateur.Plan.load(FILES / "plan-met.json")
    assert plan.outcome is not None
    assert plan.outcome.reached <= plan.outcome.asked
    assert plan.macs[1] == plan.outcome.reached


def test_masks() -> None:
    masks = secateur.Masks.load(FILES / "masks.safetensors")
    assert_outputs(secateur.apply(dense(), masks), "zeros")
    assert masks == secateur.plan_weights(dense(), 0.8)


def test_engine() -> None:
    engine = secateur.load_engine(FILES / "engine", network)
    assert_outputs(engine, "zeros", 1e-5)


def test_finished_run(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "run-finished", tmp_path / "run")
    result = secateur.prune(dense(), channels=0.5, finetune=1, run_dir=folder, **loaders())
    assert [record.metric for record in result.records] == OUTPUTS["run-finished-metrics"]
    assert_outputs(result.model, "run-finished")


def test_unfinished_run_goes_on(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "run-unfinished", tmp_path / "run")
    stored = json.loads((folder / "stop-0002" / "progress.json").read_text())
    recipe = secateur.Recipe(optimizer="sgd", lr=0.01)
    result = secateur.prune(dense(), 0.8, finetune=1, recipe=recipe, run_dir=folder, **loaders())
    assert [record.metric for record in result.records[:2]] == [record["metric"] for record in stored]
    assert len(result.records) == 3
    assert result.masks == secateur.Masks.load(FILES / "masks.safetensors")


def test_report() -> None:
    report = RunReport.from_json(json.loads((FILES / "report.json").read_text()))
    assert report.name == "stored"


def test_sensitivity() -> None:
    curves = Sensitivity.load(FILES / "sensitivity.json")
    plan = secateur.plan_channels(dense(), EXAMPLE, target="macs=50%", sensitivity=curves)
    assert plan.macs[1] <= 0.5 * plan.macs[0]
