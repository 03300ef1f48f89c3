"""What a checkpoint says of a pruning is plain data, and damage in it is told in a sentence."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import secateur
from secateur.integrations.pruning_state import MASKS_FILE, STATE_FILE, PruningState
from tests.support.models import ConvNet


def states() -> list[PruningState]:
    masks = secateur.plan_weights(ConvNet(), 0.8)
    plan = secateur.plan_channels(ConvNet(), torch.zeros(1, 4, 4, 4), 0.5)
    return [
        PruningState(),
        PruningState(step=3, progress=0.5, masks=masks, zeros=masks.zeros),
        PruningState(step=9, progress=1.0, plan=plan),
    ]


@pytest.mark.parametrize("number", range(3))
def test_it_comes_back_from_a_folder_and_from_a_dict(tmp_path: Path, number: int) -> None:
    state = states()[number]
    state.save(tmp_path)
    assert PruningState.load(tmp_path) == state
    torch.save(state.to_dict(), tmp_path / "one.ckpt")
    assert PruningState.from_dict(torch.load(tmp_path / "one.ckpt", weights_only=True)) == state


def test_masks_that_are_lost_or_of_another_moment_are_refused(tmp_path: Path) -> None:
    state = states()[1]
    state.save(tmp_path)
    secateur.plan_weights(ConvNet(), 0.5).save(tmp_path / MASKS_FILE)
    with pytest.raises(secateur.SecateurError, match="zeros where 3,610 are recorded; go on from another checkpoint"):
        PruningState.load(tmp_path)
    (tmp_path / MASKS_FILE).unlink()
    with pytest.raises(secateur.SecateurError, match="no masks file"):
        PruningState.load(tmp_path)
    (tmp_path / STATE_FILE).unlink()
    with pytest.raises(secateur.UsageError, match="There is no state of a pruning"):
        PruningState.load(tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        {"step": -1},
        {"step": 1 << 80},
        {"progress": "much"},
        {"zeros": -5},
        {"plan": {"format": "secateur-plan", "version": 1}},
        {"version": 2},
        {"format": "something"},
        {"more": 1},
    ],
    ids=str,
)
def test_damage_is_told_in_one_sentence(tmp_path: Path, damage: dict[str, Any]) -> None:
    state = states()[1]
    state.save(tmp_path)
    stored = {**json.loads((tmp_path / STATE_FILE).read_text()), **damage}
    (tmp_path / STATE_FILE).write_text(json.dumps(stored))
    with pytest.raises(secateur.SecateurError):
        PruningState.load(tmp_path)
    with pytest.raises(secateur.SecateurError):
        PruningState.from_dict({**state.to_dict(), "state": json.dumps(stored)})


@pytest.mark.parametrize("missing", ["state", "masks", "bits"])
def test_a_dict_that_lacks_something_is_refused(missing: str) -> None:
    stored = states()[1].to_dict()
    del stored[missing]
    with pytest.raises(secateur.SecateurError, match="The pruning state in the checkpoint is damaged"):
        PruningState.from_dict(stored)
    with pytest.raises(secateur.SecateurError, match="is damaged"):
        PruningState.from_dict([stored])
