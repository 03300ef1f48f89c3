"""Applying masks all or nothing, and their file: whole, or refused in one sentence."""

import copy
import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from torch import nn

import secateur
from secateur.plans.masks import LayerMask
from tests.attacks.damage import unless_refused
from tests.support.models import ConvNet


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), st.integers(0, 2**32))
def test_bits_pack_and_unpack(shape: list[int], seed: int) -> None:
    pruned = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    layer = LayerMask.pack(pruned)
    assert torch.equal(layer.pruned(), pruned)
    assert layer.zeros == int(pruned.sum())


def test_apply_zeroes_exactly_the_pruned_weights(convnet: ConvNet) -> None:
    before = copy.deepcopy(convnet)
    masks = secateur.plan_weights(convnet, 0.9)
    assert secateur.apply(convnet, masks) is convnet
    for name, parameter in convnet.named_parameters():
        original = before.get_parameter(name)
        if name in masks.layers:
            expected = torch.where(masks.layers[name].pruned(), 0.0, original)
            assert torch.equal(parameter, expected)
        else:
            assert torch.equal(parameter, original)


def test_nan_under_a_mask_becomes_zero(convnet: ConvNet) -> None:
    masks = secateur.plan_weights(convnet, 0.5)
    nn.init.constant_(convnet.hidden.weight, float("nan"))
    secateur.apply(convnet, masks)
    assert (convnet.hidden.weight[masks.layers["hidden.weight"].pruned()] == 0).all()


def test_a_model_with_zeros_is_an_untouched_model(convnet: ConvNet, tmp_path: Path) -> None:
    keys = list(convnet.state_dict())
    secateur.apply(convnet, secateur.plan_weights(convnet, 0.9))
    assert list(convnet.state_dict()) == keys
    assert not list(convnet.buffers(recurse=False))
    assert not convnet._forward_hooks
    assert not convnet._forward_pre_hooks
    copied = copy.deepcopy(convnet)
    torch.save(convnet, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    fresh = ConvNet()
    fresh.load_state_dict(convnet.state_dict())
    images = torch.randn(2, 4, 4, 4)
    convnet.eval()
    for other in (copied, loaded, fresh):
        assert torch.equal(other.eval()(images), convnet(images))


def test_masks_of_another_architecture_change_nothing(convnet: ConvNet) -> None:
    masks = secateur.plan_weights(convnet, 0.5)
    other = ConvNet()
    other.output = nn.Linear(32, 5)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(secateur.UsageError, match=r"output\.weight has shape \(4, 32\).*\(5, 32\)"):
        secateur.apply(other, masks)
    del other.conv
    with pytest.raises(secateur.UsageError, match="lacks"):
        secateur.apply(other, masks)
    for name, value in other.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_file_loads_back_equal(convnet: ConvNet, tmp_path: Path) -> None:
    masks = secateur.plan_weights(convnet, 0.9, keep=["output"])
    masks.save(tmp_path / "masks.safetensors")
    assert secateur.Masks.load(tmp_path / "masks.safetensors") == masks
    (tmp_path / "other").touch()
    assert (tmp_path / "masks.safetensors").stat().st_mode == (tmp_path / "other").stat().st_mode
    assert (tmp_path / "masks.safetensors").stat().st_size < masks.weights / 8 + 2000
    json.dumps(masks.to_json())


def test_a_save_that_fails_leaves_the_old_file_and_nothing_else(
    convnet: ConvNet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "masks.safetensors"
    masks = secateur.plan_weights(convnet, 0.9)
    masks.save(path)

    def full_disk(bits: object, file: Path, metadata: object) -> None:
        file.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("secateur.plans.masks.save_file", full_disk)
    with pytest.raises(secateur.SecateurError, match=r"could not be written \(.*No space left on device\)"):
        secateur.plan_weights(convnet, 0.5).save(path)
    assert secateur.Masks.load(path) == masks
    assert [file.name for file in tmp_path.iterdir()] == ["masks.safetensors"]


@pytest.fixture
def saved(convnet: ConvNet, tmp_path: Path) -> Path:
    path = tmp_path / "masks.safetensors"
    secateur.plan_weights(convnet, 0.9).save(path)
    return path


def test_missing_truncated_and_foreign_files_are_refused(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(secateur.SecateurError, match="There is no masks file"):
        secateur.Masks.load(tmp_path / "nowhere")
    whole = saved.read_bytes()
    for size in (0, 7, 100, len(whole) - 1):
        saved.write_bytes(whole[:size])
        with pytest.raises(secateur.SecateurError, match="save the masks again"):
            secateur.Masks.load(saved)
    save_file({"a": np.zeros(3)}, saved)
    with pytest.raises(secateur.SecateurError, match="not a masks file"):
        secateur.Masks.load(saved)
    torch.save({"a": 1}, saved)
    with pytest.raises(secateur.SecateurError, match="not a readable"):
        secateur.Masks.load(saved)
    saved.unlink()
    os.mkfifo(saved)
    with pytest.raises(secateur.SecateurError, match=r"not a readable masks file \(it is not a regular file\)"):
        secateur.Masks.load(saved)
    saved.unlink()
    saved.write_bytes((99_000_000).to_bytes(8, "little"))
    with saved.open("ab") as opened:
        opened.truncate(100_000_000)
    with pytest.raises(secateur.SecateurError, match=r"\(its header is longer than any needs\); save the masks again"):
        secateur.Masks.load(saved)


@pytest.mark.parametrize(
    ("layer", "problem"),
    [
        ({"shape": [10**6, 10**6], "zeros": 1}, "bytes of bits"),
        ({"shape": [-4, 32], "zeros": 1}, "layers\\[output.weight\\].shape\\[0\\]: -4 is negative"),
        ({"shape": [4, 32], "zeros": 3}, "zeros where 3"),
        ({"shape": "x", "zeros": 3}, "shape: 'x' is not a list"),
        ({"shape": [3, 32], "zeros": 3}, "bytes of bits"),
        ({"shape": [4, 31], "zeros": 3}, "beyond its last weight"),
    ],
)
def test_a_header_that_does_not_fit_its_bits_is_refused(saved: Path, layer: dict[str, object], problem: str) -> None:
    bits = load_file(saved)
    description = {
        "scope": "global",
        "pattern": None,
        "score": "l1",
        "layers": {"output.weight": layer},
        "left_alone": [],
    }
    bits["output.weight"][-1] |= 1
    metadata = {"format": "secateur-masks", "version": "1", "masks": json.dumps(description)}
    save_file(bits, saved, metadata=metadata)
    with pytest.raises(secateur.SecateurError, match=problem):
        secateur.Masks.load(saved)
    save_file(bits, saved, metadata={**metadata, "version": "2"})
    with pytest.raises(secateur.SecateurError, match="version 2"):
        secateur.Masks.load(saved)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_never_crashes(saved: Path, data: st.DataObject) -> None:
    whole = bytearray(saved.read_bytes())
    position = data.draw(st.integers(0, len(whole) - 1))
    whole[position] ^= 1 << data.draw(st.integers(0, 7))
    damaged = saved.with_name("damaged")
    damaged.write_bytes(bytes(whole))
    loaded = unless_refused(secateur.Masks.load, damaged)
    assert loaded is None or loaded.weights > 0
