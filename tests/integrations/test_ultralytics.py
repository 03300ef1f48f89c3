"""YOLO keeps its cut. Most is tried on a stand-in with the parts of ultralytics that count; `pytest -m real` runs
ultralytics itself, and the page about it as a whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import secateur
from secateur.integrations.ultralytics import plan_yolo, pruned_trainer
from tests.test_docs import ROOT, blocks


class Split(nn.Module):
    """Two layers in one, taken apart as C2f does it: an export reads `c`, and training does not."""

    def __init__(self) -> None:
        super().__init__()
        self.c = 8
        self.both = nn.Conv2d(3, 16, 1)
        self.out = nn.Conv2d(16, 8, 1)

    def forward(self, images: Tensor) -> Tensor:
        one, other = self.both(images).chunk(2, 1)
        return self.out(torch.cat([one.relu(), other], 1))

    def forward_split(self, images: Tensor) -> Tensor:
        one, other = self.both(images).split((self.c, self.c), 1)
        return self.out(torch.cat([one.relu(), other], 1))


class Head(nn.Module):
    """Keeps something for the widths that it saw last, as anchors are kept."""

    dynamic = False
    shape: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.cv = nn.Conv2d(8, 6, 1)

    def forward(self, feature: Tensor) -> Any:
        if self.dynamic or self.shape != feature.shape:
            self.shape, self.anchors = feature.shape, torch.arange(feature.shape[-1]) + 0.5
        scores = self.cv(feature)
        parts = {"scores": scores, "feats": [feature]}
        return parts if self.training else (scores.sigmoid() * self.anchors, parts)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(Split(), nn.Dropout(0.0), Head())
        self.yaml = {"nc": 2, "channels": 3}

    def forward(self, images: Tensor) -> Any:
        return self.model(images)

    def info(self, verbose: bool) -> None:
        pass


class Trainer:
    """Builds the network anew, like that of ultralytics."""

    def __init__(self, nc: int = 2, resume: bool = False, **args: Any) -> None:
        self.data, self.resume = {"nc": nc, "channels": 3}, resume
        self.args = SimpleNamespace(**{"pretrained": True, "dropout": 0.0, **args})

    def get_model(self, cfg: Any = None, weights: Any = None, verbose: bool = True) -> nn.Module:
        return Network()


IMAGES = torch.rand(1, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def pruned() -> Any:
    yolo = SimpleNamespace(model=Network().eval(), task="detect", task_map={"detect": {"trainer": Trainer}})
    yolo.model(IMAGES)  # what it keeps for later is there
    secateur.apply(yolo.model, plan_yolo(yolo, IMAGES, 0.5))
    return yolo


def sizes(network: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in network.parameters()]


def test_the_plan_leaves_what_the_loss_reads_and_frees_the_feature_maps() -> None:
    yolo = pruned()
    split, _, head = yolo.model.model
    assert split.both.weight.shape == (8, 3, 1, 1)
    assert split.out.weight.shape == (4, 8, 1, 1)
    assert head.cv.weight.shape == (6, 4, 1, 1)


def test_the_code_of_an_export_runs_after_the_cut_and_the_network_is_not_left_in_its_form() -> None:
    split = pruned().model.model[0]
    assert "forward" not in vars(split)
    assert torch.equal(split.forward_split(IMAGES), split(IMAGES))


def test_a_plan_is_proven_and_can_be_applied_without_a_proof_after_the_network_has_run() -> None:
    yolo = SimpleNamespace(model=Network().eval())
    yolo.model(IMAGES)
    plan = plan_yolo(yolo, IMAGES, 0.5)
    assert secateur.verify(yolo.model, plan).moved
    assert plan.constants
    assert any("0.5" in constant for constant in plan.constants), "the anchors are made in the pass that was planned"


def test_the_trainer_has_the_pruned_network_and_leaves_the_users_alone() -> None:
    yolo = pruned()
    yolo.model.requires_grad_(False)  # as the averaged network of a checkpoint
    network = pruned_trainer(yolo)(dropout=0.25).get_model("yolo.yaml")
    assert sizes(network) == sizes(yolo.model) != sizes(Trainer().get_model())
    assert all(weight.requires_grad for weight in network.parameters())
    assert network.model[1].p == 0.25
    assert not any(weight.requires_grad for weight in yolo.model.parameters())
    assert yolo.model.model[1].p == 0.0


def test_a_resumed_training_goes_on_with_the_network_of_the_checkpoint() -> None:
    saved = pruned().model
    assert pruned_trainer(pruned())(resume=True).get_model("yolo.yaml", saved) is saved


def test_data_for_another_head_and_other_weights_are_refused() -> None:
    trainer = pruned_trainer(pruned())
    with pytest.raises(secateur.UsageError, match="built for 2 classes, but the data has 3"):
        trainer(nc=3).get_model()
    with pytest.raises(secateur.UsageError, match="pretrained would replace the weights"):
        trainer(pretrained="other.pt").get_model()
    with pytest.raises(secateur.UsageError, match=r"best\.onnx is not a PyTorch network"):
        pruned_trainer(SimpleNamespace(model="best.onnx"))


@pytest.mark.real
def test_the_page_runs_as_a_whole(tmp_path: Path) -> None:
    pytest.importorskip("ultralytics")
    code = [block.code for block in blocks(ROOT / "docs" / "yolo.md", "python") if block.not_run == "needs ultralytics"]
    told = run(tmp_path, "\n".join(code))
    assert "fine-tuned: 656,566 parameters" in told


@pytest.mark.real
@pytest.mark.parametrize("kind", ["yolov8n", "yolo11n-seg", "yolo11n-pose", "yolo11n-obb", "yolo11n-cls", "yolo26n"])
def test_real_networks_are_proven_and_their_exported_form_runs(kind: str) -> None:
    ultralytics = pytest.importorskip("ultralytics")
    yolo = ultralytics.YOLO(f"{kind}.yaml")
    images = torch.rand(1, 3, 64, 64)
    plan = plan_yolo(yolo, images, 0.5)
    assert secateur.verify(yolo.model, plan).moved
    secateur.apply(yolo.model, plan)
    network = yolo.model.eval()
    expected = first(network(images))
    for block in network.modules():
        if hasattr(block, "forward_split"):
            block.forward = block.forward_split
    torch.testing.assert_close(first(network(images)), expected)
    assert plan.parameters[1] < 0.4 * plan.parameters[0]


def first(outputs: Any) -> Tensor:
    return outputs if isinstance(outputs, Tensor) else first(outputs[0])


def run(folder: Path, code: str) -> str:
    (folder / "page.py").write_text(code, encoding="utf-8")
    offline = {"YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false", "YOLO_CONFIG_DIR": str(folder)}
    surroundings = {**os.environ, **offline}
    surroundings.pop("PYTEST_CURRENT_TEST", None)  # ultralytics would write its runs beside its own code
    done = subprocess.run(
        [sys.executable, "page.py"],
        cwd=folder,
        env=surroundings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
