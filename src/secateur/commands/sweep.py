"""`secateur sweep`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.base import UsageError
from secateur.commands import run_options as options
from secateur.commands.command import as_typed
from secateur.commands.one_sentence import command_line, errors_in_one_sentence, users_errors_in_one_sentence
from secateur.commands.settings import SETTINGS_FILE, Settings, came_from_settings, read_settings, write_run_settings

if TYPE_CHECKING:
    from torch import nn

    from secateur.commands.task_file import TaskFile
    from secateur.plans import Request
    from secateur.studies import Subject, Sweep

_pooling = partial(typer.Option, rich_help_panel="Side by side")


def sweep(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A Python file, or package.module, with model(), train_data(), …")],
    target: Annotated[
        list[str] | None,
        typer.Option(help="What is to be left: latency=0.5, latency=3ms, macs=50%, params=2M, size=4MB. Repeat it."),
    ] = None,
    channels: Annotated[
        list[str] | None, typer.Option(help="A share of the channels to remove, such as 50%. Repeat it.")
    ] = None,
    sparsity: Annotated[
        list[str] | None, typer.Option(help="A share of the weights to set to zero, such as 90%. Repeat it.")
    ] = None,
    pattern: Annotated[
        list[str] | None, typer.Option(help="A pattern of zeros: 2:4, or 4x1 at every --sparsity. Repeat it.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How often to make each of them, with seeds 0, 1, …", min=1)] = 1,
    weights: options.Weights = None,
    train: Annotated[float, typer.Option(help="Epochs to train the dense model first, once for all runs.", min=0)] = 0,
    repair: options.Repair = 512,
    finetune: options.Finetune = None,
    runtime: options.Runtime = "eager",
    best: Annotated[
        list[str] | None,
        typer.Option(help="Which run to ship: accuracy>=0.87 for the fastest, latency<=3ms for the best. Repeat it."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for all runs.", file_okay=False)] = Path("sweep"),
    at_once: Annotated[
        int | None,
        _pooling(help="Runs that train at the same time, at the most. By default as many as cores allow.", min=1),
    ] = None,
    cores: Annotated[
        int | None, _pooling(help="For each run. By default they are shared out among the runs.", min=1)
    ] = None,
    processes: Annotated[int, _pooling(help="For each run, such as one for each of its GPUs.", min=1)] = 1,
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
    measure: Annotated[
        bool, options.measuring(help="Time the finished runs beside the dense model, with nothing else running.")
    ] = True,
    batch: options.Batch = None,
    threads: options.Threads = 1,
    device: options.Device = None,
    settings: Settings = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Prune one model in many ways, and draw what each millisecond costs in accuracy.

    Every cut with every seed is a run of its own. With Ray they train side by side, on this machine or a cluster.

    Latencies are measured one at a time, with nothing beside them.

    Interrupted, the same command goes on; with more cuts or seeds, it adds to what is there.

    Example: secateur sweep task.py --from w.safetensors --target latency=0.75 --target latency=0.5 --sparsity 90%
    """
    with errors_in_one_sentence(debug, f"Stopped. `{command_line()}` goes on with what is missing."):
        from secateur.checkpoint import WEIGHTS_FILE, file_and_name
        from secateur.commands.runs import named_task
        from secateur.loop import name_of_metric
        from secateur.studies import DENSE_RUN as DENSE
        from secateur.studies import Place, RunOptions, SweepCall, named_versions, parse_condition

        place = options.given(runtime=runtime, batch=batch, threads=threads, device=device)
        ranked = {"keep": keep, "include": include, "score": score, "scope": scope, "multiple_of": multiple_of}
        ranking = options.ranking_of(per_layer, sensitivity, target, **ranked, outputs=outputs, floor=floor)
        asked = options.requests_of(channels or [], target or [], sparsity or [], pattern or [], ranking, place)
        if not asked:
            raise UsageError(
                "Say what to try: --target latency=0.5, --channels 50%, --sparsity 90% or --pattern 2:4, or several."
            )
        versions = named_versions(asked)
        source = named_task(task, settings if came_from_settings(context, "task") else None)
        for condition in best or []:
            parse_condition(condition, name_of_metric(source.metric))  # not after hours of training
        recipe = options.given(optimizer=optimizer, lr=lr, weight_decay=weight_decay, distill=distill)
        file, name = (None, "") if weights is None else file_and_name(weights)
        epochs = options.epochs_of(finetune)
        same = RunOptions(train, repair, epochs, original_epochs, schedule, cuts, tolerance)  # type: ignore[arg-type]
        call = SweepCall(
            partial(subject_of_task, _wherever_it_is_sent(task), recipe, name, train > 0),
            versions,
            seeds,
            out,
            same,
            Place(runtime, batch, threads, device) if measure else None,
            file,
            at_once,
            cores,
            processes,
        )
        with users_errors_in_one_sentence():
            found = call.run()
        for run in found.finished:
            dense = {"from": str(out / DENSE / WEIGHTS_FILE), "original-epochs": same.original} if train else {}
            own = {**_as_options(versions[run.version]), **dense, "seed": run.seed, "out": str(out / run.name)}
            write_run_settings(context, out / run.name / SETTINGS_FILE, "prune", own)
        _tell(found, best or [], as_json)


def _wherever_it_is_sent(task: str) -> str:
    """On a cluster, all machines get the current folder, and find the task by its path in there."""
    path = Path(task)
    if "RAY_ADDRESS" not in os.environ or path.suffix != ".py":
        return task
    if not path.absolute().is_relative_to(Path.cwd()):
        raise UsageError(
            f"A cluster gets the current folder, and {task} is not in it; run the command from its folder."
        )
    return str(path.absolute().relative_to(Path.cwd()))


def subject_of_task(task: str, recipe: Mapping[str, Any], weights_name: str, trains: bool) -> Subject:
    """The model and data of a task file, in whichever process they are needed."""
    from secateur.studies import Subject

    source = _loaded(task)

    def dense(weights: Path | None) -> nn.Module:
        if weights is None and not trains:
            return source.build_trained_model(0, "train first with --train")
        return source.build_model(f"{weights}:{weights_name}" if weights_name else weights)

    made = source.train_data, source.eval_data, source.calibration, source.example_inputs
    return Subject(source.build_model, dense, *made, source.loss, source.metric, source.build_recipe(recipe))


@cache
def _loaded(task: str) -> TaskFile:
    from secateur.commands.task_file import load_task

    return load_task(task)


def _as_options(request: Request) -> dict[str, str]:
    """What is to be cut, as `secateur prune` writes it."""
    from secateur.plans import Channels, Target

    if isinstance(request, Target):
        return {"target": request.parsed_goal.text}
    if isinstance(request, Channels):
        return {"channels": f"{100 * float(request.amount or 0):g}%"}
    amount = {} if request.amount is None else {"sparsity": f"{100 * float(request.amount):g}%"}
    return {**amount, **({"pattern": request.pattern} if request.pattern else {})}


def _tell(found: Sweep, conditions: Sequence[str], as_json: bool) -> None:
    """All runs, the page, and which run to ship. Ends with an error where something is missing."""
    from secateur.base import SecateurError
    from secateur.pages import report_sweep

    page = report_sweep(found, lambda run: read_settings(run / SETTINGS_FILE))
    if as_json:
        import json

        from secateur.base import to_json

        print(json.dumps(to_json(found), indent=2))
    else:
        print(as_typed(str(found)))
        print(f"\nThe runs are in {found.folder}, and {page} shows them.")
    unmet = []
    for condition in conditions:
        try:
            print(_recommended(found, condition), file=sys.stderr if as_json else sys.stdout)
        except SecateurError as error:
            unmet.append(str(error))
    if found.missing:
        unmet.append(
            f"{len(found.missing)} of {len(found.runs)} runs are missing; each has its log in its folder, and "
            f"`{command_line()}` tries them again."
        )
    if unmet:
        raise SecateurError(" ".join(unmet))


def _recommended(found: Sweep, condition: str) -> str:
    from secateur.base import metric_text, milliseconds

    version = found.best(condition)
    run = version.best_run
    seeds = f", the mean of {len(version.runs)} seeds" if len(version.runs) > 1 else ""
    worth = f"{found.metric} {metric_text(found.metric, version.metric)}{seeds}"
    timing = found.timing(run.name)
    latency = f"; {milliseconds(timing.seconds)}, {timing} × dense" if timing else ""
    folder = found.folder / run.name
    return f"{condition}: ship {folder} ({worth}{latency}). Next: `secateur export {quote(str(folder))}`."
