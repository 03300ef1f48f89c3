"""`secateur prune`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.commands import run_options as options
from secateur.commands.command import as_typed
from secateur.commands.measure import BASELINE
from secateur.commands.one_sentence import command_line, errors_in_one_sentence, users_errors_in_one_sentence
from secateur.commands.settings import SETTINGS_FILE, Settings, came_from_settings, read_settings, write_settings

if TYPE_CHECKING:
    from secateur.bench import Sheet
    from secateur.loop import Result
    from secateur.plans import Request


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
    weights: options.Weights = None,
    train: options.Train = 0,
    repair: options.Repair = 512,
    finetune: options.Finetune = None,
    runtime: options.Runtime = "eager",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="The folder. By default the task and the cut: task-channels-50.", file_okay=False
        ),
    ] = None,
    keep: options.Keep = None,
    per_layer: options.PerLayer = None,
    include: options.Include = None,
    score: options.Score = None,
    scope: options.Scope = None,
    multiple_of: options.MultipleOf = None,
    outputs: options.Outputs = None,
    floor: options.Floor = None,
    sensitivity: options.SensitivityFile = None,
    original_epochs: options.OriginalEpochs = None,
    schedule: options.Schedule = "one-shot",
    cuts: options.Cuts = 5,
    optimizer: options.Optimizer = None,
    lr: options.LearningRate = None,
    weight_decay: options.WeightDecay = None,
    distill: options.Distill = None,
    tolerance: options.Tolerance = 0.02,
    seed: Annotated[int, options.training(help="For the order of the data.", min=0, max=2**32 - 1)] = 0,
    measure: Annotated[bool, options.measuring(help="Time the pruned model beside the dense one at the end.")] = True,
    batch: options.Batch = None,
    threads: options.Threads = 1,
    device: options.Device = None,
    dense: Annotated[
        bool, options.measuring("--dense", help="Store zeros in the file as well, for programs other than secateur.")
    ] = False,
    settings: Settings = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
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
        from secateur.commands.runs import named_task
        from secateur.loop import prune as prune_model
        from secateur.plans import Target, Zeros

        ranked = {"keep": keep, "include": include, "score": score, "scope": scope, "multiple_of": multiple_of}
        ranking = options.ranking_of(
            per_layer, sensitivity, target, **ranked, outputs=outputs, floor=floor, pattern=pattern
        )
        place = options.given(runtime=runtime, batch=batch, threads=threads, device=device)
        request = _request(sparsity, channels, target, ranking, place)
        latency = isinstance(request, Target) and request.parsed_goal.what == "latency"
        if measure:
            find_runtime(runtime, device=device)  # not after hours of training
        elif not latency and place != {"runtime": "eager", "threads": 1}:
            raise UsageError(
                "--runtime, --batch, --threads and --device belong to measuring; leave them out, or --no-measure."
            )
        source = named_task(task, settings if came_from_settings(context, "task") else None)
        recipe = source.build_recipe(
            options.given(optimizer=optimizer, lr=lr, weight_decay=weight_decay, distill=distill)
        )
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
                finetune=options.epochs_of(finetune),
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


def _request(
    sparsity: str | None, channels: str | None, target: str | None, ranking: dict[str, Any], place: dict[str, Any]
) -> Request:
    from secateur.base import UsageError
    from secateur.plans import parse_goal, requested

    if not (channels or target or sparsity or "pattern" in ranking):
        raise UsageError(
            "Say how much to remove: --channels 50%, --target latency=0.5, --sparsity 90% or --pattern 2:4."
        )
    if target is not None and parse_goal(target).what == "latency":
        ranking |= place
    return requested(sparsity, channels, target, ranking)


def _folder(task: str, request: Request) -> Path:
    """Named after the task and the cut, so that the same command finds its run again."""
    from secateur.studies import cut_name

    return Path(f"{Path(task.removesuffix('.py')).name.rpartition('.')[2]}-{cut_name(request)}")


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
