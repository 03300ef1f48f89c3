"""Weights from the files that training programs write, and from files that somebody has made to do harm."""

from __future__ import annotations

import argparse
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from secateur.base.errors import UsageError
from secateur.checkpoint import foreign_file
from secateur.checkpoint.foreign_file import ForeignFile, StoredTensor
from secateur.checkpoint.weight_file import load_weights


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


class Settings:
    """A class that whoever reads the file need not have."""

    def __init__(self) -> None:
        self.lr = 0.1


class Attributes(dict[str, Any]):
    """As libraries have them, for hyper-parameters."""


def trained() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Net()


def weights() -> dict[str, Tensor]:
    return dict(trained().state_dict())


def averaged() -> dict[str, Tensor]:
    return {name: tensor + 1 for name, tensor in weights().items()}


def under(prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in weights().items()}


def optimizer() -> dict[str, Any]:
    """As `Adam.state_dict` gives it."""
    moments = {i: {"step": torch.tensor(1.0), "exp_avg": value} for i, value in enumerate(averaged().values())}
    return {"state": moments, "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": list(moments)}]}


def lightning() -> dict[str, Any]:
    return {
        "epoch": 3,
        "state_dict": {**under("model._orig_mod."), "loss.weight": torch.ones(2)},
        "callbacks": {Settings: {"best": Path("best.ckpt")}, "EarlyStopping": {"patience": 3}},
        "optimizer_states": [optimizer()],
        "hyper_parameters": Attributes(lr=0.1, settings=Settings()),
        "hparams_name": "kwargs",
    }


FILES: dict[str, Callable[[], Any]] = {
    "a state dict": weights,
    "model": lambda: {"model": weights(), "epoch": 3},
    "state_dict": lambda: {"state_dict": weights(), "optimizer": optimizer()},
    "model_state_dict": lambda: {"model_state_dict": weights(), "args": argparse.Namespace(lr=0.1)},
    "of DataParallel": lambda: under("module."),
    "of torch.compile": lambda: {"model": under("_orig_mod.")},
    "of FSDP within": lambda: {
        name.replace("0.", "0._fsdp_wrapped_module.", 1): tensor for name, tensor in weights().items()
    },
    "of AveragedModel": lambda: AveragedModel(trained()).state_dict(),
    "Lightning": lightning,
    "the same twice": lambda: {"model": (found := weights()), "best": found, "settings": Settings()},
    "a whole model": trained,
    "a whole model in a wrapper": lambda: {"model": nn.DataParallel(trained()), "settings": Settings()},
}


def assert_filled(net: nn.Module, expected: dict[str, Tensor]) -> None:
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, expected[name].to(tensor.dtype)), name


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("file", FILES)
def test_whatever_training_programs_write_is_taken(file: str, protocol: int, tmp_path: Path) -> None:
    torch.save(FILES[file](), tmp_path / "trained.pt", pickle_protocol=protocol)
    net = Net()
    load_weights(net, tmp_path / "trained.pt")
    assert_filled(net, weights())


def test_prefixes_in_safetensors_and_a_model_in_a_wrapper(tmp_path: Path) -> None:
    save_file(under("model."), tmp_path / "trained.safetensors")
    model = AveragedModel(Net())
    load_weights(model, tmp_path / "trained.safetensors")
    assert_filled(model.module, weights())


def test_tied_weights_are_stored_once_and_a_part_of_a_larger_model_will_do(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    torch.save({"net.embed.weight": torch.ones(5, 3), "task.weight": torch.ones(7)}, tmp_path / "trained.pt")
    model = Tied()
    load_weights(model, tmp_path / "trained.pt")
    assert (model.head.weight == 1).all()


@pytest.mark.parametrize("beside", [{}, {"settings": Settings()}], ids=["plain", "with a foreign class"])
def test_averaged_weights_are_taken_by_name(beside: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "trained.pt"
    torch.save({"model": weights(), "ema": {"module": averaged()}, **beside}, file)
    net = Net()
    for name in ("ema", "ema.module"):
        load_weights(net, tmp_path / f"trained.pt:{name}")
        assert_filled(net, averaged())
    load_weights(net, tmp_path / "trained.pt:model")
    assert_filled(net, weights())
    with pytest.raises(UsageError, match=r"several names \(ema\.module, model\); say which, such as .*:model"):
        load_weights(net, file)
    with pytest.raises(UsageError, match=r"no weights called swa; it has ema\.module, model\.$"):
        load_weights(net, tmp_path / "trained.pt:swa")
    assert_filled(net, weights())


def test_a_colon_may_be_part_of_a_name_of_a_file(tmp_path: Path) -> None:
    torch.save(weights(), tmp_path / "12:30.pt")
    net = Net()
    load_weights(net, tmp_path / "12:30.pt")
    assert_filled(net, weights())
    with pytest.raises(UsageError, match=r"no weights called ema; give .*12:30\.pt alone\.$"):
        load_weights(net, tmp_path / "12:30.pt:ema")
    with pytest.raises(UsageError, match=r"There is no file .*other\.pt; "):
        load_weights(net, tmp_path / "other.pt:ema")


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ({"epoch": 3, "lr": 0.1}, r"no weights in .*trained\.pt \(epoch, lr\); write torch\.save"),
        ([1, 2], r"no weights in .*trained\.pt; write"),
        (
            {"model": {**weights(), "2.bias": torch.ones(3)}},
            r"pt:model does not fit .*\(2\.bias is 3, not 2\); give",
        ),
        ({"model": {**weights(), "3.bias": torch.ones(3)}}, r"\(unknown to the model: 3\.bias\)"),
        ({name: tensor for name, tensor in weights().items() if "2." not in name}, r"\(missing: 2\.weight, 2\.bias\)"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(contents: Any, message: str, tmp_path: Path) -> None:
    torch.save(contents, tmp_path / "trained.pt")
    net = trained()
    with pytest.raises(UsageError, match=message):
        load_weights(net, tmp_path / "trained.pt")
    assert_filled(net, weights())


class Call:
    """Pickled as a call of whatever function."""

    def __init__(self, function: Any, *args: Any, state: Any = None) -> None:
        self.described = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> Any:
        return self.described


RUN: list[str] = []


def run(*args: Any) -> list[str]:
    RUN.append("a file ran code")
    return RUN


@pytest.fixture
def nothing_is_run() -> Any:
    RUN.clear()
    yield
    assert not RUN


@pytest.mark.usefixtures("nothing_is_run")
@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize(
    "harm",
    [
        Call(run),
        Call(eval, f"__import__('{__name__}', fromlist=['x']).run()"),
        Call(getattr, Call(__import__, __name__), "run"),
        Call(map, run, [1]),
        Call(Settings, state={"__class__": Call(run)}),
        {Settings: Call(run), "nested": [Call(run), (Call(run),)]},
    ],
    ids=["a function", "eval", "getattr", "a class", "state", "nested"],
)
def test_no_pickled_code_is_run(harm: Any, protocol: int, tmp_path: Path) -> None:
    """Objects beside the weights are not made at all; what they would have been is not missed."""
    torch.save({"state_dict": weights(), "hyper_parameters": harm}, tmp_path / "trained.ckpt", pickle_protocol=protocol)
    net = Net()
    load_weights(net, tmp_path / "trained.ckpt")
    assert_filled(net, weights())


@pytest.mark.usefixtures("nothing_is_run")
def test_a_call_in_the_place_of_a_weight_is_no_weight(tmp_path: Path) -> None:
    torch.save({**weights(), "0.weight": Call(run)}, tmp_path / "trained.pt")
    with pytest.raises(UsageError, match=r"missing: 0\.weight"):
        load_weights(Net(), tmp_path / "trained.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps({**weights(), "0.weight": Call(run)}))
    with pytest.raises(UsageError, match="torch cannot read it without running code in it"):
        load_weights(Net(), tmp_path / "old.pt")


def rewritten(file: Path, pickled: bytes | None = None, compression: int = zipfile.ZIP_STORED) -> None:
    """The file once more, with another pickle in it, or compressed."""
    with zipfile.ZipFile(file) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, record in records.items():
            archive.writestr(name, pickled if pickled is not None and name.endswith("/data.pkl") else record)


FOREIGN = b"cfractions\nFraction\n"
HARMFUL = {
    "a circle": (b"\x80\x02}q\x00(X\x01\x00\x00\x00ah\x00X\x01\x00\x00\x00b" + FOREIGN + b"u.", "tensors without end"),
    "levels without end": (b"\x80\x02" + FOREIGN + b"N" + b"\x85" * 20_000 + b"\x86.", "no weights in"),
    "a key without end": (b"\x80\x02}" + FOREIGN + b"N" + b"\x85" * 20_000 + b"s.", "no weights in"),
    "an empty stack": (b"\x80\x02" + FOREIGN + b"00.", "no weights that can be read"),
    "no end": (b"\x80\x02" + FOREIGN, "no weights that can be read"),
    "a text longer than the file": (b"\x80\x02" + FOREIGN + b"X\xff\xff\xff\x7fa.", "no weights that can be read"),
    "an extension": (b"\x80\x02" + FOREIGN + b"\x82\x01.", "no weights that can be read"),
}


@pytest.mark.parametrize("harm", HARMFUL)
def test_harmful_pickles_are_refused_in_one_sentence(harm: str, tmp_path: Path) -> None:
    file = tmp_path / "trained.pt"
    torch.save({"model": weights()}, file)
    pickled, message = HARMFUL[harm]
    rewritten(file, pickled)
    with pytest.raises(UsageError, match=message) as refused:
        load_weights(Net(), file)
    assert len(str(refused.value)) < 500


def test_names_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty dicts, each of which holds the one before twice: a thousand million names in a few bytes."""
    inner: dict[str, Any] = {"w": torch.ones(1)}
    for _ in range(30):
        inner = {"a": inner, "b": inner}
    torch.save({"x": inner, "settings": Settings()}, tmp_path / "trained.pt")
    monkeypatch.setattr(foreign_file, "_MOST_TENSORS", 1000)
    with pytest.raises(UsageError, match="tensors without end"):
        load_weights(Net(), tmp_path / "trained.pt")


@pytest.mark.parametrize(("offset", "shape", "stride"), [(13, (1,), (1,)), (0, (4, 3), (4, 1)), (0, (1 << 40,), (1,))])
def test_a_tensor_beyond_its_bytes_is_refused(
    offset: int, shape: tuple[int, ...], stride: tuple[int, ...], tmp_path: Path
) -> None:
    torch.save(torch.arange(12.0), tmp_path / "trained.pt")
    with zipfile.ZipFile(tmp_path / "trained.pt") as archive:
        file = ForeignFile(archive)
        whole = file.tensor(StoredTensor("0", torch.float32, 0, (4, 3), (3, 1)))
        assert torch.equal(whole, torch.arange(12.0).reshape(4, 3))
        with pytest.raises(RuntimeError, match="out of bounds"):
            file.tensor(StoredTensor("0", torch.float32, offset, shape, stride))


def test_compressed_records_are_refused(tmp_path: Path) -> None:
    torch.save({"model": weights(), "settings": Settings()}, tmp_path / "trained.pt")
    rewritten(tmp_path / "trained.pt", compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(UsageError, match="it is compressed"):
        load_weights(Net(), tmp_path / "trained.pt")
