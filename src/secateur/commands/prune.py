"""`secateur prune`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.commands.command import as_typed
from secateur.commands.measure import BASELINE
from secateur.commands.one_sentence import command_line, errors_in_one_sentence, users_errors_in_one_sentence
from secateur.commands.settings import SETTINGS_FILE, Settings, came_from_settings, read_settings, write_settings

if TYPE_CHECKING:
    from secateur.bench import Sheet
    from secateur.commands.task_file import TaskFile
    from secateur.loop import Result
    from secateur.plans import Request

_ranking = partial(typer.Option, rich_help_panel="Ranking and rounding")
_training = partial(typer.Option, rich_help_panel="Training")
_measuring = partial(typer.Option, rich_help_panel="Measuring and output")


def prune(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A Python file, or package.module, with model(), train_data(), …")],
    channels: Annotated[str | None, typer.Option(help="The share of channels to remove, such as 50%.")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="What is to be left instead: latency=0.5, latency=3ms, macs=50%, params=2M or size=4MB."),
    ] = None,
    sparsity: Annotated[str | None, typer.Option(help="The share of weights to set to zero, such as 90%.")] = None,
    pattern: Annotated[str | None, typer.Option(help="A pattern of zeros: 2:4, or 4x1 with --sparsity.")] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--from", help="A file of trained weights (safetensors, torch.save); FILE:ema for those called ema."
        ),
    ] = None,
    train: Annotated[float, typer.Option(help="Epochs to train first, for a model that is not trained.", min=0)] = 0,
    repair: Annotated[
        int, typer.Option(help="Examples to fit the weights that are left on, without labels; 0 turns it off.", min=0)
    ] = 512,
    finetune: Annotated[
        str | None,
        typer.Option(
            help="Epochs to fine-tune, or a share of the original ones. By default 15%, at least 1; if unknown, 2."
        ),
    ] = None,
    runtime: Annotated[
        str, typer.Option(help="Where a latency is measured: eager, compile, sparse, onnxruntime or openvino.")
    ] = "eager",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The folder. By default the task and the cut: task-channels-50.", file_okay=False
        ),
    ] = None,
    keep: Annotated[list[str] | None, _ranking(help="A layer to leave alone. May be repeated.")] = None,
    per_layer: Annotated[
        list[str] | None, _ranking(help="A layer and an amount of its own: conv1=25%. May be repeated.")
    ] = None,
    include: Annotated[
        list[str] | None, _ranking(help="A bias, norm or embedding to prune with the weights. May be repeated.")
    ] = None,
    score: Annotated[
        str | None,
        _ranking(help="l1, l2, taylor or random; for channels also batch-norm or activation. By default l1."),
    ] = None,
    scope: Annotated[
        str | None,
        _ranking(help="global ranks all layers together, layer each alone. By default layer for --channels."),
    ] = None,
    multiple_of: Annotated[
        int | None, _ranking(help="Round the channels that stay to multiples of this.", min=1)
    ] = None,
    outputs: Annotated[
        list[str] | None,
        _ranking(help="An output whose shape counts: logits, 0 or 1.boxes. Others may change theirs. May be repeated."),
    ] = None,
    floor: Annotated[
        float | None, _ranking(help="With --target or --scope global, the share that stays of each group: 0.1.")
    ] = None,
    sensitivity: Annotated[
        Path | None, _ranking(help="With --target, what secateur sensitivity wrote.", dir_okay=False)
    ] = None,
    original_epochs: Annotated[
        float | None, _training(help="How long the model was trained, for a share of that.", min=0)
    ] = None,
    schedule: Annotated[str, _training(help="one-shot, iterative or gradual.")] = "one-shot",
    cuts: Annotated[int, _training(help="How many cuts the iterative schedule makes.", min=1)] = 5,
    optimizer: Annotated[str | None, _training(help="adamw or sgd. By default adamw.")] = None,
    lr: Annotated[float | None, _training(help="The highest learning rate. By default 0.001.")] = None,
    weight_decay: Annotated[
        float | None, _training(help="Of weights, not of biases and norms. By default 0.01.")
    ] = None,
    distill: Annotated[
        float | None,
        _training(help="How much to imitate the unpruned model, from 0 to 1. For classifiers 0.5 by default."),
    ] = None,
    tolerance: Annotated[
        float, _training(help="How far below the dense model the metric may end to count as recovered.", min=0)
    ] = 0.02,
    seed: Annotated[int, _training(help="For the order of the data.", min=0, max=2**32 - 1)] = 0,
    measure: Annotated[bool, _measuring(help="Time the pruned model beside the dense one at the end.")] = True,
    batch: Annotated[
        int | None,
        _measuring(help="Examples at once. By default 1; for a latency target, those of example_inputs.", min=1),
    ] = None,
    threads: Annotated[int, _measuring(help="Threads to measure on.", min=1)] = 1,
    device: Annotated[
        str | None, _measuring(help="cpu or cuda, to measure on. By default where the model is.", show_default=False)
    ] = None,
    dense: Annotated[
        bool, _measuring("--dense", help="Store zeros in the file as well, for programs other than secateur.")
    ] = False,
    settings: Settings = None,
    as_json: Annotated[bool, _measuring("--json", help="Print the result as JSON.")] = False,
    debug: Annotated[bool, _measuring("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Prune the model of a task, repair it, fine-tune it, and tell what each stop did to it.

    Say how much with --channels, --target, --sparsity or --pattern.

    Interrupted, the same command goes on where it stopped.

    Example: secateur prune task.py --from trained.safetensors --target latency=0.5
    """
    with errors_in_one_sentence(debug, f"Stopped. `{command_line()}` goes on from the last finished epoch."):
        from accelerate import PartialState
        from accelerate.utils import set_seed

        from secateur.base import UsageError, batch_of
        from secateur.bench import ON_CUDA, find_runtime
        from secateur.bench import measure as measure_models
        from secateur.checkpoint import read_checkpoint
        from secateur.loop import prune as prune_model
        from secateur.plans import Target, Zeros

        ranking = _given(
            pattern=pattern,
            keep=keep,
            per_layer=_amounts(per_layer),
            include=include,
            score=score,
            scope=scope,
            multiple_of=multiple_of,
            outputs=outputs,
            floor=floor,
            sensitivity=sensitivity,
        )
        place = _given(runtime=runtime, batch=batch, threads=threads, device=device)
        request = _request(sparsity, channels, target, ranking, place)
        latency = isinstance(request, Target) and request.parsed_goal.what == "latency"
        if measure:
            find_runtime(runtime, device=device)  # not after hours of training
        elif not latency and place != {"runtime": "eager", "threads": 1}:
            raise UsageError(
                "--runtime, --batch, --threads and --device belong to measuring; leave them out, or --no-measure."
            )
        source = _load_task(task, settings if came_from_settings(context, "task") else None)
        recipe = source.build_recipe(_given(optimizer=optimizer, lr=lr, weight_decay=weight_decay, distill=distill))
        folder = out or _folder(task, request)
        set_seed(seed)  # a model that is not trained yet starts from the same random weights every time
        with users_errors_in_one_sentence():
            given = weights is not None or train > 0
            model = (
                source.build_model(weights) if given else source.build_trained_model(seed, "train first with --train")
            )
            inputs = source.example_inputs() if measure or not isinstance(request, Zeros) else None
            result = prune_model(
                model,
                request,
                example_inputs=None if isinstance(request, Zeros) else inputs,
                train_data=source.train_data(),
                eval_data=source.eval_data(),
                calibration=source.calibration() if repair else None,
                loss=source.loss,
                metric=source.metric,
                train=train,
                repair=repair,
                finetune=_epochs(finetune),
                original_epochs=original_epochs,
                schedule=schedule,  # type: ignore[arg-type]
                cuts=cuts,
                recipe=recipe,
                run_dir=folder,
                seed=seed,
                tolerance=tolerance,
            )
        if not PartialState().is_main_process:
            return
        if dense:
            result.save(folder, settings=read_checkpoint(folder).settings, dense=True)
        write_settings(context, folder / SETTINGS_FILE)
        name = folder.name if folder.name not in ("", BASELINE) else "pruned"
        sheet = None
        if measure:
            with users_errors_in_one_sentence():
                models = {BASELINE: source.build_model(weights), name: result.model}
                batches = [batch or (batch_of(inputs) if latency else 1)]
                # A latency is met where the model is trained, unless --device says otherwise.
                met_on = PartialState().device.type if latency and runtime in ON_CUDA else None
                on = device or ("cuda" if met_on == "cuda" else None)
                sheet = measure_models(models, inputs, runtimes=[runtime], batches=batches, threads=threads, device=on)
        _tell(result, sheet, folder, name, as_json)


def _load_task(task: str, settings: Path | None) -> TaskFile:
    from secateur.commands.runs import load_recorded_task
    from secateur.commands.task_file import load_task

    if settings is None:
        return load_task(task)
    return load_recorded_task(task, settings, [], "name it in front of --settings")


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, [], {})}


def _request(
    sparsity: str | None, channels: str | None, target: str | None, ranking: dict[str, Any], place: dict[str, Any]
) -> Request:
    from secateur.base import UsageError
    from secateur.channels import Sensitivity
    from secateur.plans import parse_goal, requested

    if not (channels or target or sparsity or "pattern" in ranking):
        raise UsageError(
            "Say how much to remove: --channels 50%, --target latency=0.5, --sparsity 90% or --pattern 2:4."
        )
    if target is not None and parse_goal(target).what == "latency":
        ranking |= place
    if target is not None and "sensitivity" in ranking:
        ranking["sensitivity"] = Sensitivity.load(ranking["sensitivity"])
    return requested(sparsity, channels, target, ranking)


def _amounts(per_layer: list[str] | None) -> dict[str, str]:
    from secateur.base import UsageError

    amounts = {}
    for text in per_layer or []:
        layer, equals, amount = text.rpartition("=")
        if not (layer and equals and amount):
            raise UsageError(f"--per-layer is {text!r}; write a layer and its amount, such as conv1=25%.")
        amounts[layer.strip()] = amount
    return amounts


def _epochs(finetune: str | None) -> float | str | None:
    from secateur.base import UsageError

    if finetune is None or finetune.strip().endswith("%"):
        return finetune
    try:
        return float(finetune)
    except ValueError:
        raise UsageError(f"--finetune is {finetune!r}; give a number of epochs, or a share such as 15%.") from None


def _folder(task: str, request: Request) -> Path:
    """Named after the task and the cut, so that the same command finds its run again."""
    from secateur.plans import Channels, Target

    name = Path(task.removesuffix(".py")).name.rpartition(".")[2]
    if isinstance(request, Target):
        return Path(f"{name}-{request.parsed_goal.text.replace('=', '-').replace('%', '').replace(' ', '')}")
    what = "channels" if isinstance(request, Channels) else (request.pattern or "zeros").replace(":", "-")
    return Path(f"{name}-{what}" + ("" if request.amount is None else f"-{100 * float(request.amount):g}"))


def _tell(result: Result, sheet: Sheet | None, out: Path, name: str, as_json: bool) -> None:
    """What the run came to: on the page, and on the screen."""
    from secateur.pages import report_pruned

    page = report_pruned(out, name, read_settings(out / SETTINGS_FILE), sheet)
    if as_json:
        import json

        print(json.dumps({**result.to_json(), "measurements": sheet.to_json() if sheet else None}, indent=2))
        return
    print(as_typed(str(result)))
    if sheet is not None:
        from rich.console import Console

        from secateur.pages import print_sheet

        print()
        print_sheet(sheet, Console())
    from secateur.base import byte_text
    from secateur.checkpoint import WEIGHTS_FILE

    stored = byte_text((out / WEIGHTS_FILE).stat().st_size)
    print(
        f"\nThe pruned model is in {out} ({stored}), and {page} shows it. Next: `secateur measure {quote(str(out))} "
        f"--runtime all`, `secateur export {quote(str(out))}`; in Python, secateur.load({str(out)!r}, build_model)."
    )
