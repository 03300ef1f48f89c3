"""Trained networks from packages: looked into, cut, proven, repaired on unlabelled data, exported, and compared with
the dense network's answers on data that the repair has not seen.

`pytest -m real` runs them; tests/real/packages.txt lists what they need. `python -m tests.real.test_real_networks`
measures the table of docs/real-networks.md anew, which takes an hour on one core.
"""

from __future__ import annotations

import sys
import time
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import secateur
from secateur.base.tensor_trees import tensors_in
from tests.real import image_classifier, speech_detector, text_reader
from tests.real.network import part_of
from tests.real.registry import HALF_ZERO, NETWORKS, QUARTER, TENTH

pytestmark = [
    pytest.mark.real,
    pytest.mark.filterwarnings("ignore:from_pretrained will not load:secateur.SecateurWarning"),
]
PAGE = Path(__file__).parents[2] / "docs" / "real-networks.md"
MEMORY_GB = 4.0
SHARES = {TENTH: 0.1, QUARTER: 0.25}
CASES = [(network, cut) for network, it in NETWORKS.items() for cut in it.cuts]


@dataclass(frozen=True)
class Dense:
    model: nn.Module
    calibration: Any
    others: Any
    answers: Any

    @property
    def example(self) -> Any:
        return part_of(self.calibration, slice(2))


@cache
def dense(name: str) -> Dense:
    torch.set_num_threads(1)
    model, (calibration, others) = NETWORKS[name].build(), NETWORKS[name].inputs()
    return Dense(model, calibration, others, answers_of(name, model, others))


@torch.no_grad()
def answers_of(name: str, model: nn.Module, inputs: Any) -> Any:
    return NETWORKS[name].answers(model, inputs)


def agreement(name: str, model: nn.Module) -> float:
    whole = dense(name)
    return NETWORKS[name].agreement(answers_of(name, model, whole.others), whole.answers)


def planned(name: str, cut: str) -> secateur.Plan | secateur.Masks:
    model, example = dense(name).model, dense(name).example
    if cut == HALF_ZERO:
        return secateur.plan_weights(model, 0.5, scope="layer")
    return secateur.plan_channels(model, example, SHARES[cut], keep=NETWORKS[name].keep)


@dataclass(frozen=True)
class Pruned:
    plan: secateur.Plan | secateur.Masks
    model: nn.Module
    right_after: float
    repaired: float
    cpu_seconds: float
    """Of the repair."""


def pruned(name: str, cut: str) -> Pruned:
    whole, plan = dense(name), planned(name, cut)
    right_after = agreement(name, secateur.apply(deepcopy(whole.model), plan))
    model, started = deepcopy(whole.model), time.process_time()
    secateur.repair(model, plan, [whole.calibration], memory_gb=MEMORY_GB, progress=False)
    seconds = time.process_time() - started
    return Pruned(plan, model, right_after, agreement(name, model), seconds)


def test_the_photographs_are_recognised() -> None:
    from PIL import Image

    model, labelled = image_classifier.build(), image_classifier.labelled()
    images = torch.stack([image_classifier.as_input(Image.open(file).resize((224, 224))) for file, _ in labelled])
    with torch.no_grad():
        right = model(images).argmax(1) == torch.tensor([label for _, label in labelled])
    assert right.sum() >= 18
    assert len(right) == 20


def test_the_speech_detector_answers_like_the_published_one() -> None:
    whole, published = dense("speech_detector"), speech_detector.published()
    window = speech_detector.STEP
    steps = whole.others[0, speech_detector.CONTEXT :].split(window)
    heard = whole.others[:1].clone()
    heard[:, : speech_detector.CONTEXT] = 0  # which the published one begins with
    with torch.no_grad():
        wanted = torch.stack([published(step[None], speech_detector.RATE)[0, 0] for step in steps])
        torch.testing.assert_close(whole.model(heard)[0], wanted, rtol=1e-3, atol=1e-4)
    assert wanted.min() < 0.1 < 0.9 < wanted.max()


def test_the_text_reader_reads() -> None:
    drawn = text_reader.phrases()[text_reader.SEEN :]
    assert text_reader.same_letters(dense("text_reader").answers, drawn) > 0.85


@pytest.mark.parametrize("name", NETWORKS)
def test_most_of_it_can_be_cut(name: str) -> None:
    anatomy = secateur.inspect(dense(name).model, dense(name).example)
    assert anatomy.parameters == sum(parameter.numel() for parameter in dense(name).model.parameters())
    half = secateur.plan_channels(dense(name).model, dense(name).example, 0.5)
    assert half.parameters[1] < 0.8 * half.parameters[0], "a sentence encoder keeps its embeddings: they are its width"
    assert half.macs[1] < 0.6 * half.macs[0]


@pytest.mark.parametrize(("name", "cut"), CASES)
def test_cut_and_repaired_it_still_gives_the_answers(name: str, cut: str, tmp_path: Path) -> None:
    whole, done = dense(name), pruned(name, cut)
    if isinstance(done.plan, secateur.Plan):
        assert secateur.verify(whole.model, done.plan).moved
    assert done.repaired > done.right_after
    assert done.repaired >= NETWORKS[name].cuts[cut], "see docs/real-networks.md for what was measured"
    file = secateur.export(done.model, whole.example, tmp_path / "pruned.onnx", progress=False).path
    with torch.no_grad():
        wanted = next(tensors_in(called(done.model, whole.others)))
    torch.testing.assert_close(in_onnxruntime(file, whole.others), wanted, rtol=1e-2, atol=1e-3 * float(wanted.std()))


def called(model: nn.Module, inputs: Any) -> Any:
    return model(inputs) if isinstance(inputs, torch.Tensor) else model(**inputs)


def in_onnxruntime(file: Path, inputs: Any) -> torch.Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    named = {given.name: given for given in session.get_inputs()}
    values = {name: inputs if isinstance(inputs, torch.Tensor) else inputs[name] for name in named}
    return torch.from_numpy(session.run(None, {name: value.numpy() for name, value in values.items()})[0])


def row(name: str, cut: str) -> str:
    """Of the table."""
    done, network = pruned(name, cut), NETWORKS[name]
    removed = timed = ["–", "–"]
    if isinstance(done.plan, secateur.Plan):
        removed = [f"{round(100 * (1 - after / before))} %" for before, after in (done.plan.parameters, done.plan.macs)]
        timed = speed(name, done.model)
    agreed = f"{network.agreement_in_words} {done.right_after:.3f} → {done.repaired:.3f}"
    return f"| {' | '.join([network.title, cut, *removed, agreed, f'{done.cpu_seconds:.0f}', *timed])} |"


def speed(name: str, model: nn.Module) -> list[str]:
    """How many times as fast as the dense network, and the dense network as itself, with their intervals."""
    one = part_of(dense(name).calibration, slice(1))
    times = secateur.compare({"dense": dense(name).model, "pruned": model}, one, runtime="onnxruntime", max_seconds=10)
    both = times["pruned"], times.control
    return [f"{1 / timing.ratio:.2f} [{1 / timing.high:.2f}, {1 / timing.low:.2f}]" for timing in both]


def write_page(cases: list[tuple[str, str]]) -> None:
    """One row at a time, so that what was measured is kept if it is stopped. Rows of other cases stay."""
    for name, cut in cases:
        measured = row(name, cut)
        print(measured, flush=True)
        head, rule, rows = PAGE.read_text(encoding="utf-8").partition("|---|---|---|---|---|---|---|---|\n")
        by_case = {tuple(line.split(" | ")[:2]): line for line in [*rows.splitlines(), measured]}
        order = [(f"| {NETWORKS[name].title}", cut) for name, cut in CASES]
        table = "".join(f"{by_case[case]}\n" for case in order if case in by_case)
        PAGE.write_text(head + rule + table, encoding="utf-8")


if __name__ == "__main__":
    write_page([(name, cut) for name, cut in CASES if name in (sys.argv[1:] or NETWORKS)])
