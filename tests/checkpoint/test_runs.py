"""The folder of a finished run is a checkpoint."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import secateur
from secateur.loop.run_folder import load_run
from tests.attacks.make import sealed_record
from tests.support.checkpoints import assert_loads_as, state_bits
from tests.support.models import ConvNet
from tests.support.report_runs import loaders as loaders_of_reports
from tests.test_earlier_files import FILES, network

KINDS: dict[str, dict[str, Any]] = {"zeros": {"amount": 0.5}, "channels": {"channels": 0.5}}


def prune(folder: Path, loaders: dict[str, DataLoader], **options: Any) -> secateur.Result:
    return secateur.prune(
        ConvNet(), run_dir=folder, train=1, repair=0, finetune=0, progress=False, **options, **loaders
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_ends_as_a_checkpoint(kind: str, tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    result = prune(tmp_path, loaders, **KINDS[kind])
    assert_loads_as(result.model, tmp_path, ConvNet)
    told = secateur.read_checkpoint(tmp_path)
    assert told.plan == result.plan
    assert told.masks == (result.masks if result.plan is None else None)
    assert told.metrics == json.loads(json.dumps(result.to_json()))
    assert told.settings["seed"] == 0
    again = load_run(tmp_path, ConvNet())
    assert state_bits(again.model) == state_bits(result.model)
    assert str(again) == str(result)


def test_training_alone_ends_as_one_too(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    result = secateur.train(ConvNet(), 1, run_dir=tmp_path, progress=False, **loaders)
    assert_loads_as(result.model, tmp_path, ConvNet)
    told = secateur.read_checkpoint(tmp_path)
    assert (told.plan, told.masks) == (None, None)


def test_a_damaged_result_is_refused_in_one_sentence(tmp_path: Path, loaders: dict[str, DataLoader]) -> None:
    prune(tmp_path, loaders, amount=0.5)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    for read in (lambda: load_run(tmp_path, ConvNet()), lambda: prune(tmp_path, loaders, amount=0.5)):
        with pytest.raises(secateur.SecateurError, match=r"The result in .* cannot be read") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_a_checkpoint_that_no_run_left_is_not_taken_for_its_result(
    tmp_path: Path, loaders: dict[str, DataLoader]
) -> None:
    model = ConvNet()
    secateur.save(model, [], tmp_path)
    with pytest.raises(secateur.UsageError, match="holds a checkpoint that no run left there; choose another folder"):
        prune(tmp_path, loaders, amount=0.5)
    assert_loads_as(model, tmp_path, ConvNet)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("records", []),
        ("records", "cut only"),
        ("histogram", {"edges": [0.0, math.inf, math.inf], "kept": [1, 1], "removed": [1, 1]}),
        ("histogram", {"edges": [0.0, 1.0, 1.0], "kept": [1, 1], "removed": [1, 1]}),
        ("left_per_layer", {"stem": [10**400, 1]}),
        ("tolerance", 10**400),
    ],
    ids=lambda each: str(each)[:20],
)
def test_forged_metrics_are_refused_in_one_sentence(key: str, value: Any, tmp_path: Path) -> None:
    """Sealed again, so that nothing but what they say tells. `secateur measure` loads the run and writes its page."""
    folder = shutil.copytree(FILES / "run-finished", tmp_path / "run")
    record = json.loads((folder / "secateur.json").read_bytes())
    metrics = record["metrics"]
    if value == "cut only":
        value = [stop for stop in metrics["records"] if stop["phase"] == "cut"]
    metrics[key] = {"threshold": 0.1, "no_threshold": "", **value} if key == "histogram" else value
    (folder / "secateur.json").write_bytes(sealed_record(record))
    with pytest.raises(secateur.SecateurError, match=r"can(not)? be read"):
        print(load_run(folder, network()), secateur.report(folder))


@pytest.mark.parametrize("stored", [{}, {"settings": 7}, {"settings": {"ranking": []}}, {"settings": None}], ids=str)
def test_forged_settings_of_a_run_are_refused_in_one_sentence(stored: dict[str, Any], tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "run-finished", tmp_path / "run")
    (folder / "run.json").write_text(json.dumps({"version": 1, **stored}))
    with pytest.raises(secateur.SecateurError, match=r"run\.json is damaged"):
        secateur.prune(network(), channels=0.5, run_dir=folder, **loaders_of_reports())
