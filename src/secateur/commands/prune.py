"""`secateur prune`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from secateur.commands.measure import BASELINE
from secateur.commands.one_sentence import command_line, errors_in_one_sentence, users_errors_in_one_sentence
from secateur.commands.settings import SETTINGS_FILE, Settings, write_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from secateur.bench import Sheet
    from secateur.loop import Result

__all__ = ["prune"]


def prune(
    context: typer.Context,
    task: Annotated[str, typer.Argument(help="A Python file, or package.module, with model(), train_data(), …")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the pruned model.", file_okay=False)],
    channels: Annotated[str | None, typer.Option(help="The share of channels to remove, such as 50%.")] = None,
    target: Annotated[
        str | None,
        typer.Option(help="What is to be left instead: latency=0.5, latency=3ms, macs=50%, params=2M or size=4MB."),
    ] = None,
    sparsity: Annotated[str | None, typer.Option(help="The share of weights to set to zero, such as 90%.")] = None,
    pattern: Annotated[str | None, typer.Option(help="A pattern of zeros: 2:4, or 4x1 with --sparsity.")] = None,
    weights: Annotated[
        Path | None, typer.Option("--from", help="Trained weights: safetensors, or a state dict.")
    ] = None,
    train: Annotated[float, typer.Option(help="Epochs to train first, for a model that is not trained.", min=0)] = 0,
    finetune: Annotated[str, typer.Option(help="Epochs to fine-tune, or a share such as 15% of the original.")] = "15%",
    original_epochs: Annotated[
        float | None, typer.Option(help="How long the model was trained, for a share of that.", min=0)
    ] = None,
    schedule: Annotated[str, typer.Option(help="one-shot, iterative or gradual.")] = "one-shot",
    keep: Annotated[list[str] | None, typer.Option(help="A layer to leave alone. May be repeated.")] = None,
    runtime: Annotated[
        str, typer.Option(help="Where a latency is measured: eager, compile, sparse, onnxruntime or openvino.")
    ] = "eager",
    batch: Annotated[int | None, typer.Option(help="Examples at once, for a latency.", min=1)] = None,
    threads: Annotated[int, typer.Option(help="Threads, for a latency.", min=1)] = 1,
    seed: Annotated[int, typer.Option(help="For the order of the data.", min=0, max=2**32 - 1)] = 0,
    dense: Annotated[
        bool, typer.Option("--dense", help="Store zeros in the file as well, for programs other than secateur.")
    ] = False,
    measure: Annotated[bool, typer.Option(help="Time the pruned model beside the dense one at the end.")] = True,
    settings: Settings = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Prune the model of a task, fine-tune it, and tell what each stop did to it.

    Interrupted, the same command goes on where it stopped.

    Example: secateur prune task.py --from trained.safetensors --target latency=0.5 --finetune 2 -o pruned
    """
    with errors_in_one_sentence(debug, f"Stopped. `{command_line()}` goes on from the last finished epoch."):
        from accelerate import PartialState
        from accelerate.utils import set_seed

        from secateur.base import UsageError
        from secateur.bench import find_runtime
        from secateur.commands.task_file import load_task
        from secateur.loop import prune as prune_model

        if not (channels or target or sparsity or pattern):
            raise UsageError(
                "Say how much to remove: --channels 50%, --target latency=0.5, --sparsity 90% or --pattern 2:4."
            )
        options: dict[str, Any] = {"keep": keep or []}
        if target:
            options |= {"runtime": runtime, "batch": batch, "threads": threads}
        if pattern:
            options["pattern"] = pattern
        if measure:
            find_runtime(runtime)  # not after hours of training
        epochs = _epochs(finetune, original_epochs or train)
        source = load_task(task)
        set_seed(seed)  # a model that is not trained yet starts from the same random weights every time
        with users_errors_in_one_sentence():
            result = prune_model(
                source.build_model(weights),
                sparsity,
                channels=channels,
                target=target,
                example_inputs=source.example_inputs() if channels or target else None,
                train_data=source.train_data(),
                eval_data=source.eval_data(),
                loss=source.loss,
                metric=source.metric,
                train=train,
                finetune=epochs,
                original_epochs=original_epochs,
                schedule=schedule,  # type: ignore[arg-type]
                run_dir=out,
                seed=seed,
                **options,
            )
        if not PartialState().is_main_process:
            return
        if dense:
            _store_zeros(result, out)
        write_settings(context, out / SETTINGS_FILE)
        name = out.name if out.name not in ("", BASELINE) else "pruned"
        sheet = None
        if measure:
            with users_errors_in_one_sentence():
                models = {BASELINE: source.build_model(weights), name: result.model}
                sheet = _measured(models, source.example_inputs(), runtime, batch, threads)
        _tell(result, sheet, out, name, as_json)


def _store_zeros(result: Result, out: Path) -> None:
    from secateur.checkpoint import read_checkpoint, save

    told = read_checkpoint(out)
    applied = [step for step in (told.plan, told.masks) if step is not None]
    save(result.model, applied, out, metrics=told.metrics, settings=told.settings, dense=True)


def _measured(
    models: Mapping[str, nn.Module], example_inputs: Any, runtime: str, batch: int | None, threads: int
) -> Sheet:
    from secateur.bench import measure

    return measure(models, example_inputs, runtimes=[runtime], batches=[batch or 1], threads=threads)


def _tell(result: Result, sheet: Sheet | None, out: Path, name: str, as_json: bool) -> None:
    """What the run came to: on the page, and on the screen."""
    from secateur.commands.reporting import write_report

    page = write_report(out, name, result, sheet)
    if as_json:
        import json

        print(json.dumps({**result.to_json(), "measurements": sheet.to_json() if sheet else None}, indent=2))
        return
    print(result)
    if sheet is not None:
        from rich.console import Console

        from secateur.pages import print_sheet

        print()
        print_sheet(sheet, Console())
    from secateur.base import byte_text
    from secateur.checkpoint import WEIGHTS_FILE

    stored = byte_text((out / WEIGHTS_FILE).stat().st_size)
    print(
        f"\nThe pruned model is in {out} ({stored}), and {page} shows it. Next: `secateur measure {out} --runtime "
        f"all`, `secateur export {out}`; in Python, secateur.load({str(out)!r}, build_model)."
    )


def _epochs(finetune: str, original_epochs: float | None) -> float | str:
    from secateur.base import UsageError

    if finetune.strip().endswith("%"):
        if not original_epochs:
            raise UsageError(
                f"--finetune {finetune} is a share of the epochs that the model was trained for; say how many with "
                "--original-epochs 100, or how many to fine-tune for with --finetune 2."
            )
        return finetune
    try:
        return float(finetune)
    except ValueError:
        raise UsageError(f"--finetune is {finetune!r}; give a number of epochs, or a share such as 15%.") from None
