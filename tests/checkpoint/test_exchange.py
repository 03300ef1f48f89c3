"""A save is whole or has not happened, whatever kills it, and its files are known again by size and digest."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from torch import Tensor, nn

import secateur
from secateur.checkpoint import exchange
from secateur.checkpoint.manifest import Manifest
from tests.support.checkpoints import Language, assert_loads_as, masked, pruned, state_bits, words
from tests.support.killed_saves import killed_while

Saved = tuple[nn.Module, list[secateur.Plan | secateur.Masks]]


def versions() -> list[Saved]:
    """Three checkpoints of one architecture: with and without extras beside the weights."""
    cut, plan = pruned(Language().eval(), words())
    sparse, masks = masked(Language())
    return [(cut, [plan]), (sparse, [masks]), (Language(), [])]


def save(saved: Saved, folder: Path) -> None:
    model, applied = saved
    secateur.save(model, applied, folder, dense=len(applied) == 0)


def found_in(folder: Path, choices: list[Saved]) -> int:
    loaded = state_bits(secateur.load(folder, Language))
    return next(i for i, (model, _) in enumerate(choices) if state_bits(model) == loaded)


def test_killed_at_any_moment_the_old_checkpoint_or_the_new_one_is_there(tmp_path: Path) -> None:
    choices = versions()
    outcomes = []
    killed = True
    while killed:
        folder = tmp_path / str(len(outcomes))
        save(choices[0], folder)
        killed = killed_while(partial(save, choices[1], folder), folder, len(outcomes))
        outcomes.append(found_in(folder, choices))
        if outcomes.count(1) == 1:
            killed_again(folder, choices)
        save(choices[1], folder)
        assert found_in(folder, choices) == 1
        assert {file.name for file in folder.iterdir()} == {"secateur.json", "model.safetensors", "extras.safetensors"}
    assert outcomes == sorted(outcomes), "once the new one is there, it stays"
    assert outcomes.count(0) > 5
    assert outcomes.count(1) > 3


def killed_again(folder: Path, choices: list[Saved]) -> None:
    """The first save got as far as the record; wherever the next one is killed, what the first has written is safe."""
    assert list(folder.glob("*.new")), "the first save has work left to do"
    killed, step = True, 0
    while killed:
        again = folder.with_name(f"{folder.name}-{step}")
        shutil.copytree(folder, again)
        killed = killed_while(partial(save, choices[2], again), again, step)
        assert found_in(again, choices) in ((1, 2) if killed else (2,))
        step += 1


def test_a_kill_before_anything_is_there_leaves_nothing_or_all(tmp_path: Path) -> None:
    choices = versions()
    for step in range(40):
        folder = tmp_path / str(step)
        killed = killed_while(partial(save, choices[0], folder), folder, step)
        if (folder / "secateur.json").exists():
            assert found_in(folder, choices) == 0
        if not killed:
            break
    assert not killed


def test_a_save_while_a_checkpoint_is_read_changes_nothing_of_it(tmp_path: Path) -> None:
    first, second = Language(), Language()
    secateur.save(first, [], tmp_path)

    def build_while_somebody_saves() -> nn.Module:
        secateur.save(second, [], tmp_path)
        return Language()

    assert state_bits(secateur.load(tmp_path, build_while_somebody_saves)) == state_bits(first)
    assert_loads_as(second, tmp_path, Language)


def saved_meanwhile(patch: pytest.MonkeyPatch, *saves: Callable[[], object]) -> list[bytes]:
    """Each time that a manifest has been read, the next of these saves happens; the list tells what was read."""
    read, ahead, found = Manifest.from_bytes, iter(saves), []

    def read_then_saved(raw: bytes, source: str) -> Manifest:
        found.append(raw)
        manifest = read(raw, source)
        with patch.context() as within:
            within.setattr(Manifest, "from_bytes", read)
            next(ahead, lambda: None)()
        return manifest

    patch.setattr(Manifest, "from_bytes", read_then_saved)
    return found


def test_where_a_save_comes_between_its_files_are_read_with_its_own_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [Language() for _ in range(3)]
    save_one, save_two, save_three = (partial(secateur.save, model, [], tmp_path) for model in models)
    save_one()
    found = saved_meanwhile(monkeypatch, save_two, save_three)
    loaded = secateur.load(tmp_path, Language)
    assert len(found) == 3
    assert state_bits(loaded) == state_bits(models[2])


def test_damage_is_told_at_once_and_endless_saving_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [Language(), Language()]
    saves = [partial(secateur.save, model, [], tmp_path) for model in models]
    saves[0]()
    found = saved_meanwhile(monkeypatch, *saves[1:], *saves * 100)
    monkeypatch.setattr("secateur.checkpoint.exchange._MOST_SAVES", 4)
    with pytest.raises(secateur.SecateurError, match="is saved to all the time; wait until that ends"):
        secateur.load(tmp_path, Language)
    assert len(found) == 4
    monkeypatch.undo()
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    found = saved_meanwhile(monkeypatch)
    with pytest.raises(secateur.SecateurError, match="is damaged, cut short or missing"):
        secateur.load(tmp_path, Language)
    assert len(found) == 1


def test_two_that_save_at_once_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = versions()
    other = threading.Thread(target=save, args=(choices[1], tmp_path))
    write = exchange.save_file

    def write_while_another_saves(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str]) -> None:
        if "extras" in path.name and not other.ident:
            other.start()
            other.join(0.2)
        write(tensors, path, metadata)

    monkeypatch.setattr(exchange, "save_file", write_while_another_saves)
    save(choices[0], tmp_path)
    other.join()
    assert found_in(tmp_path, choices) == 1


def test_files_that_are_no_longer_needed_go(tmp_path: Path) -> None:
    save(versions()[0], tmp_path)
    assert (tmp_path / "extras.safetensors").exists()
    linear = nn.Linear(2, 2)
    secateur.save(linear, [], tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model.safetensors", "secateur.json"]
    assert_loads_as(linear, tmp_path, lambda: nn.Linear(2, 2))


def test_a_save_that_fails_keeps_the_old_one_and_tidies_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = versions()
    save(choices[0], tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}

    def full_disk(tensors: object, path: Path, metadata: object) -> None:
        if "extras" in path.name:
            raise OSError(28, "No space left on device")
        path.write_bytes(b"weights")

    monkeypatch.setattr("secateur.checkpoint.exchange.save_file", full_disk)
    with pytest.raises(secateur.SecateurError, match=r"could not be written .*what was saved before is intact"):
        save(choices[1], tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_a_read_only_disk_is_told_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(versions()[0], tmp_path)

    def read_only(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for change in ("mkdir", "unlink", "rename", "replace"):
        monkeypatch.setattr(os, change, read_only)
    with pytest.raises(secateur.SecateurError) as caught:
        save(versions()[1], tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'secateur.json'} could not be written ([Errno 30] Read-only file system); choose a folder that "
        "you may write to, then start again: what was saved before is intact."
    )


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(secateur.UsageError, match="cannot be made a folder"):
        secateur.save(nn.Linear(2, 2), [], tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    save(versions()[0], tmp_path)
    for name in ("model.safetensors", "secateur.json"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
        with pytest.raises(secateur.SecateurError, match=r"model\.safetensors|There is no checkpoint"):
            secateur.load(tmp_path, Language)


def test_files_are_readable_as_others_in_the_folder_are(tmp_path: Path) -> None:
    save(versions()[0], tmp_path)
    (tmp_path / "other").touch()
    assert {file.stat().st_mode for file in tmp_path.iterdir()} == {(tmp_path / "other").stat().st_mode}
