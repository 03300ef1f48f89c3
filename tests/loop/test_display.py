"""What a person sees of a run: lines in a log, nothing when it is off, and what a display of one's own makes of it."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.data import DataLoader

import secateur
from secateur.examples import SmallResNet
from secateur.loop.display import Display
from secateur.loop.result import Record
from tests.support.models import ConvNet
from tests.support.report_runs import loaders as image_loaders

Loaders = dict[str, DataLoader]


def test_a_log_gets_a_line_for_each_stop(
    convnet: ConvNet, loaders: Loaders, capsys: pytest.CaptureFixture[str]
) -> None:
    secateur.prune(convnet, 0.5, train=1, repair=0, finetune=1, progress=Display("mine"), **loaders)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert not out
    assert len(lines) == 3
    assert re.fullmatch(r"mine: train epoch 1/1: accuracy [01]\.\d{4} \(\d+\.\d s\), about \d+ s left", lines[0])
    assert re.fullmatch(r"mine: cut: accuracy [01]\.\d{4}, 50\.0% zeros \(\d+\.\d s\), about \d+ s left", lines[1])
    assert re.fullmatch(r"mine: fine-tune epoch 1/1: accuracy [01]\.\d{4}, 50\.0% zeros \(\d+\.\d s\)", lines[2])


def test_silence(convnet: ConvNet, loaders: Loaders, capsys: pytest.CaptureFixture[str]) -> None:
    secateur.prune(convnet, 0.5, repair=0, finetune=1, progress=False, **loaders)
    assert capsys.readouterr() == ("", "")


class Telling(Display):
    def __init__(self) -> None:
        super().__init__(enabled=False)
        self.told: list[str] = []

    def start(self, batches: int, done: int, metric: str) -> None:
        self.told.append(f"{batches} batches, {done} done, {metric}")

    def begin(self, stop: str) -> None:
        self.told.append(stop)

    def step(self, loss: float) -> None:
        self.told.append("step")

    def end(self, record: Record) -> None:
        self.told.append(f"{record.stop} ended")


def test_a_display_of_ones_own_is_told_of_everything(
    convnet: ConvNet, loaders: Loaders, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Telling()
    secateur.prune(convnet, 0.5, repair=0, finetune=1, progress=display, **loaders)
    assert display.told == [
        "8 batches, 0 done, accuracy",
        "before",
        "before ended",
        "cut",
        "cut ended",
        "fine-tune epoch 1/1",
        *["step"] * 8,
        "fine-tune epoch 1/1 ended",
    ]
    assert capsys.readouterr() == ("", "")


@pytest.mark.filterwarnings("ignore::secateur.SecateurWarning")  # of a target that noise kept it from meeting
def test_the_search_for_a_latency_shows_its_steps(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    options = {**image_loaders(), "target": "latency=0.8", "finetune": 0, "example_inputs": torch.zeros(1, 1, 28, 28)}
    model = SmallResNet((32,), classes=4)
    secateur.prune(model, **{**options, "progress": True})
    shown = capsys.readouterr().err
    assert "timing layers in eager: 1/" in shown
    assert "timing candidate 1 in eager" in shown
    secateur.prune(model, **options)
    assert capsys.readouterr().err == ""
