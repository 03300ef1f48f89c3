"""Hugging Face architectures, built offline with random weights: planned, cut, proven, run, saved and loaded again.

`pytest -m zoo` runs all of them; without a marker a sample runs. docs/zoo.md lists those of which less than a quarter
of the parameters can go, with the reason; `python tests/channels/test_zoo.py` writes that page anew.
"""

from __future__ import annotations

import copy
import re
import textwrap
import warnings
from pathlib import Path

import pytest
import torch

import secateur
from secateur.channels.select import NothingToCut
from secateur.surgery import cut
from secateur.surgery.proof.dry_run import dry_run, is_cheap_to_prove
from tests.hf_zoo import ZOO

SAMPLE = """vit swin convnext mobilenet_v2 efficientnet detr bert deberta gpt2 llama mixtral mamba t5 wav2vec2
clip""".split()
PAGE = Path(__file__).parents[2] / "docs" / "zoo.md"
ENOUGH = 0.25


def listed() -> dict[str, str]:
    """The architectures that the page lists as cut less, with the reason."""
    return dict(re.findall(r"^\| `(\w+)` \| \d+ % \| (.+) \|$", PAGE.read_text(), re.MULTILINE))


def listed_as_looking() -> set[str]:
    """Those that the page says to look at values which follow from their weights."""
    return set(re.findall(r"`(\w+)`", re.findall(r"look at values [^.]*?: ([^.]*)\.", PAGE.read_text())[0]))


def checks_text(proven: int, by_itself: int, on_stand_ins: int, looking: list[str]) -> str:
    """How `apply` checks the cuts that can be made."""
    names = ", ".join(f"`{name}`" for name in looking) or "none"
    return textwrap.fill(
        f"{proven} of the {on_stand_ins + len(looking)} that can be cut are proven. `apply` makes that proof by itself "
        f"for {by_itself} of them, the others having too many operators. Without it, {on_stand_ins} are tried out on "
        f"stand-ins for their weights. The other {len(looking)} look at values that follow from their weights, and are "
        f"run on those, cut: {names}. None is cut unchecked.",
        120,
    )


def cut_and_prove(name: str) -> float:
    """Takes one architecture all the way; returns the share of parameters that went."""
    model, inputs = ZOO[name].build().eval(), ZOO[name].inputs()
    plan = secateur.plan_channels(model, inputs, 0.5)
    assert secateur.verify(model, plan).moved, "the check would have passed whatever had been removed"
    dry_run(model, plan)
    assert bool(plan.looks_at_weights) == (name in listed_as_looking())
    full = copy.deepcopy(model)
    cut(model, plan)
    with torch.no_grad():
        outputs = flat(model(**inputs))
        if not plan.looks_at_weights:  # otherwise the values decide, such as how many keypoints are found
            assert [tensor.shape for tensor in outputs] == [tensor.shape for tensor in flat(full(**inputs))]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", secateur.SecateurWarning)  # of what no config can say
            reloaded = secateur.apply(full, secateur.Plan.from_json(plan.to_json()), verify=False)
        reloaded.load_state_dict(model.state_dict(), strict=True)
        for tensor, again in zip(outputs, flat(reloaded(**inputs)), strict=True):
            assert torch.equal(tensor, again), "a model cut from the saved plan, with its new config, computes the same"
    return 1 - plan.parameters[1] / plan.parameters[0]


def flat(outputs: object) -> list[torch.Tensor]:
    from secateur.base.tensor_trees import tensors_in

    return list(tensors_in(outputs))


@pytest.mark.parametrize("name", SAMPLE)
def test_sample(name: str) -> None:
    assert cut_and_prove(name) >= ENOUGH


@pytest.mark.zoo
@pytest.mark.parametrize("name", [name for name in ZOO if name not in SAMPLE])
def test_the_rest(name: str) -> None:
    try:
        share = cut_and_prove(name)
    except NothingToCut:
        share = 0.0
    assert share >= ENOUGH or name in listed(), f"{share:.0%} of the parameters went; docs/zoo.md does not say why"


def test_the_page_says_how_cuts_are_checked() -> None:
    looking = listed_as_looking()
    assert 0 < len(looking) <= 5
    assert looking < set(ZOO)
    sentences = r"(\d+) of the (\d+) that can be cut .* for (\d+) of .* it, (\d+) are tried"
    proven, cuttable, by_itself, tried = map(int, re.findall(sentences, one_line(PAGE))[0])
    assert checks_text(proven, by_itself, tried, [name for name in ZOO if name in looking]) in PAGE.read_text()
    assert cuttable == tried + len(looking) <= len(ZOO)


def one_line(page: Path) -> str:
    return " ".join(page.read_text().split())


def write_page() -> None:
    """Cuts every architecture and writes down how far it went."""
    warnings.simplefilter("ignore")
    rows, good, proven, by_itself, on_stand_ins = [], 0, 0, 0, 0
    looking: list[str] = []
    for name, architecture in ZOO.items():
        model, inputs = architecture.build().eval(), architecture.inputs()
        share = 0.0
        try:
            plan = secateur.plan_channels(model, inputs, 0.5)
            proven += secateur.verify(model, plan).moved
            by_itself += is_cheap_to_prove(model, plan)
            dry_run(model, plan)
            on_stand_ins += not plan.looks_at_weights
            looking += [name] * bool(plan.looks_at_weights)
            share = 1 - plan.parameters[1] / plan.parameters[0]
        except NothingToCut:
            pass
        if share >= ENOUGH:
            good += 1
            continue
        reasons: dict[str, int] = {}
        for item in secateur.inspect(model, inputs).left_alone:
            reason = re.sub(r" in [\w.]+\)$", ")", item.reason)
            reason = re.sub(r"^[\w.]+, which may read it,", "a layer that may read it", reason)
            reasons[reason] = reasons.get(reason, 0) + 1
        most = sorted(reasons, key=reasons.__getitem__, reverse=True)[:2]
        rows.append(f"| `{name}` | {round(100 * share)} % | {'; '.join(most)} |")
    head, _, _ = PAGE.read_text().partition("| architecture |")
    head = re.sub(r"\*\*\d+ of \d+\*\*", f"**{good} of {len(ZOO)}**", head)
    head = re.sub(r"The other \d+ are in the table", f"The other {len(ZOO) - good} are in the table", head)
    checks = checks_text(proven, by_itself, on_stand_ins, looking)
    head = re.sub(r"(?ms)^\d+ of the \d+ that can be cut are proven.*?unchecked\.$", checks, head)
    PAGE.write_text(
        "\n".join([head + "| architecture | parameters removed | what stays, and why |", "|---|---|---|", *rows, ""])
    )


if __name__ == "__main__":
    write_page()
