"""Options that `secateur prune` and `secateur sweep` share: how weights are ranked, trained and measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from secateur.plans import Request

ranking = partial(typer.Option, rich_help_panel="Ranking and rounding")
training = partial(typer.Option, rich_help_panel="Training")
measuring = partial(typer.Option, rich_help_panel="Measuring and output")

Weights = Annotated[
    Path | None,
    typer.Option("--from", help="A file of trained weights (safetensors, torch.save); FILE:ema for those called ema."),
]
Train = Annotated[float, typer.Option(help="Epochs to train first, for a model that is not trained.", min=0)]
Repair = Annotated[
    int, typer.Option(help="Examples to fit the weights that are left on, without labels; 0 turns it off.", min=0)
]
Finetune = Annotated[
    str | None,
    typer.Option(
        help="Epochs to fine-tune, or a share of the original ones. By default 15%, at least 1; if unknown, 2."
    ),
]
Runtime = Annotated[
    str, typer.Option(help="Where a latency is measured: eager, compile, sparse, onnxruntime or openvino.")
]
Keep = Annotated[list[str] | None, ranking(help="A layer to leave alone. May be repeated.")]
PerLayer = Annotated[list[str] | None, ranking(help="A layer and an amount of its own: conv1=25%. May be repeated.")]
Include = Annotated[
    list[str] | None, ranking(help="A bias, norm or embedding to prune with the weights. May be repeated.")
]
Score = Annotated[
    str | None,
    ranking(help="l1, l2, taylor or random; for channels also batch-norm or activation. By default l1."),
]
Scope = Annotated[
    str | None,
    ranking(help="global ranks all layers together, layer each alone. By default layer for --channels."),
]
MultipleOf = Annotated[int | None, ranking(help="Round the channels that stay to multiples of this.", min=1)]
Outputs = Annotated[
    list[str] | None,
    ranking(help="An output whose shape counts: logits, 0 or 1.boxes. Others may change theirs. May be repeated."),
]
Floor = Annotated[
    float | None, ranking(help="With --target or --scope global, the share that stays of each group: 0.1.")
]
SensitivityFile = Annotated[
    Path | None, ranking(help="With --target, what secateur sensitivity wrote.", dir_okay=False)
]
OriginalEpochs = Annotated[float | None, training(help="How long the model was trained, for a share of that.", min=0)]
Schedule = Annotated[str, training(help="one-shot, iterative or gradual.")]
Cuts = Annotated[int, training(help="How many cuts the iterative schedule makes.", min=1)]
Optimizer = Annotated[str | None, training(help="adamw or sgd. By default adamw.")]
LearningRate = Annotated[float | None, training(help="The highest learning rate. By default 0.001.")]
WeightDecay = Annotated[float | None, training(help="Of weights, not of biases and norms. By default 0.01.")]
Distill = Annotated[
    float | None,
    training(help="How much to imitate the unpruned model, from 0 to 1. For classifiers 0.5 by default."),
]
Tolerance = Annotated[
    float, training(help="How far below the dense model the metric may end to count as recovered.", min=0)
]
Batch = Annotated[
    int | None,
    measuring(help="Examples at once. By default 1; for a latency target, those of example_inputs.", min=1),
]
Threads = Annotated[int, measuring(help="Threads to measure on.", min=1)]
Device = Annotated[
    str | None, measuring(help="cpu or cuda, to measure on. By default where the model is.", show_default=False)
]
AsJson = Annotated[bool, measuring("--json", help="Print the result as JSON.")]
Debug = Annotated[bool, measuring("--debug", help="Show the traceback of an error.")]


def given(**options: Any) -> dict[str, Any]:
    """Those that somebody has given."""
    return {name: value for name, value in options.items() if value not in (None, [], {})}


def ranking_of(per_layer: list[str] | None, sensitivity: Path | None, target: object, **options: Any) -> dict[str, Any]:
    """Of all cuts, as `Zeros`, `Channels` and `Target` take them."""
    found = given(per_layer=_amounts(per_layer), sensitivity=sensitivity, **options)
    if target and sensitivity is not None:
        from secateur.channels import Sensitivity

        found["sensitivity"] = Sensitivity.load(sensitivity)
    return found


def _amounts(per_layer: list[str] | None) -> dict[str, str]:
    from secateur.base import UsageError

    amounts = {}
    for text in per_layer or []:
        layer, equals, amount = text.rpartition("=")
        if not (layer and equals and amount):
            raise UsageError(f"--per-layer is {text!r}; write a layer and its amount, such as conv1=25%.")
        amounts[layer.strip()] = amount
    return amounts


def epochs_of(finetune: str | None) -> float | str | None:
    from secateur.base import UsageError

    if finetune is None or finetune.strip().endswith("%"):
        return finetune
    try:
        return float(finetune)
    except ValueError:
        raise UsageError(f"--finetune is {finetune!r}; give a number of epochs, or a share such as 15%.") from None


def requests_of(
    channels: Sequence[str],
    targets: Sequence[str],
    sparsities: Sequence[str],
    patterns: Sequence[str],
    options: Mapping[str, Any],
    place: Mapping[str, Any],
) -> list[Request]:
    """All cuts that were asked for. Each takes the options that it knows, and one that none knows is refused."""
    from dataclasses import fields

    from secateur.plans import Channels, Target, Zeros, parse_goal, requested

    asked: list[tuple[type[Request], tuple[Any, Any, Any], dict[str, Any]]] = [
        *((Target, (None, None, goal), dict(place) if parse_goal(goal).what == "latency" else {}) for goal in targets),
        *((Channels, (None, amount, None), {}) for amount in channels),
        *(
            (Zeros, (amount, None, None), {"pattern": pattern} if pattern else {})
            for amount, pattern in _zeros(sparsities, patterns)
        ),
    ]
    known = {kind: {field.name for field in fields(kind)} for kind, _, _ in asked}
    for option in options:
        if not any(option in names for names in known.values()):
            requested(*asked[0][1], {option: options[option]})  # refuses it, in a sentence
    return [
        requested(*what, {**own, **{name: value for name, value in options.items() if name in known[kind]}})
        for kind, what, own in asked
    ]


def _zeros(sparsities: Sequence[str], patterns: Sequence[str]) -> Iterator[tuple[str | None, str | None]]:
    """N:M patterns stand for themselves; blocks are made at every sparsity, beside single weights."""
    from secateur.base import UsageError
    from secateur.weights import NofM, parse_pattern

    yield from ((amount, None) for amount in sparsities)
    for pattern in patterns:
        if isinstance(parse_pattern(pattern), NofM):
            yield None, pattern
        elif sparsities:
            yield from ((amount, pattern) for amount in sparsities)
        else:
            raise UsageError(f"--pattern {pattern} needs --sparsity, which says how many of the blocks go.")
