"""`secateur measure`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secateur.commands.one_sentence import errors_in_one_sentence, users_errors_in_one_sentence

if TYPE_CHECKING:
    from secateur.bench import Sheet
    from secateur.loop import Result

BASELINE = "dense"
RUNTIMES, BATCHES = ["eager"], [1]


def measure(
    what: Annotated[
        list[str],
        typer.Argument(help="Folders of finished runs; or first a task, and then runs of it.", show_default=False),
    ],
    task: Annotated[
        str | None, typer.Option(help="The task of the runs, where they do not name it or it has moved.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="A file of the dense model's weights (safetensors, torch.save); FILE:ema for those called ema.",
        ),
    ] = None,
    runtimes: Annotated[
        list[str],
        typer.Option(
            "--runtime",
            help="eager, compile, sparse, onnxruntime, openvino, or all that can run here. May be repeated.",
        ),
    ] = RUNTIMES,
    batches: Annotated[
        list[int], typer.Option("--batch", help="Examples to run at once. May be repeated.", min=1)
    ] = BATCHES,
    threads: Annotated[int, typer.Option(help="Threads to run on.", min=1)] = 1,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. By default where model() puts it.", show_default=False)
    ] = None,
    max_seconds: Annotated[
        float, typer.Option(help="When to stop timing a runtime and batch, even without a verdict.", min=0)
    ] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the sheet as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure pruned runs beside their dense model, in turn: speed, memory and size.

    A difference in speed counts only beyond the noise: how far apart the timer puts the dense model and its own copy.

    Example: secateur measure runs/zeros-90 --runtime all --batch 1 --batch 32
    """
    with errors_in_one_sentence(debug, "Stopped. Nothing was kept; a measurement is made in one go."):
        from secateur.base import SecateurError
        from secateur.bench import measure as measure_models
        from secateur.commands.runs import task_and_runs
        from secateur.loop import load_run

        source, runs = task_and_runs(what, task)
        with users_errors_in_one_sentence():
            results: dict[str, tuple[Path, Result]] = {}
            for run in runs:
                name = run.name if run.name and run.name not in (BASELINE, *results) else str(run)
                results[name] = run, load_run(run, source.build_model())
            sheet = measure_models(
                {BASELINE: source.build_model(weights), **{name: found.model for name, (_, found) in results.items()}},
                source.example_inputs(),
                runtimes="all" if "all" in runtimes else runtimes,
                batches=batches,
                threads=threads,
                device=device,
                max_seconds=max_seconds,
            )
        if as_json:
            import json

            print(json.dumps(sheet.to_json(), indent=2))
        else:
            from rich.console import Console

            from secateur.pages import print_sheet

            print_sheet(sheet, Console())
        if not sheet.measurements:
            raise SecateurError("No runtime could run the model; the reasons are above.")
        measured = {name for item in sheet.measurements for name in item.comparison.timings}
        pages, unwritten = _add_to_reports(sheet, {name: run for name, (run, _) in results.items() if name in measured})
        if pages and not as_json:
            print(f"\nThe latencies are in {' and '.join(pages)}.")
        if unwritten:
            raise SecateurError(
                f"The latencies above are not kept in {' and '.join(unwritten)}; copy the run to a folder that you may "
                "write to and measure it there, or keep what --json prints."
            )


def _add_to_reports(sheet: Sheet, runs: Mapping[str, Path]) -> tuple[list[str], list[str]]:
    """The pages that show the sheet now, and the runs that could not keep it, each with the reason."""
    from secateur.base import NotWritten
    from secateur.pages import report

    pages, unwritten = [], []
    for name, run in runs.items():
        try:
            pages.append(str(report(run, sheet=sheet, name=name)))
        except NotWritten as error:
            unwritten.append(f"{run} ({error.reason})")
    return pages, unwritten
