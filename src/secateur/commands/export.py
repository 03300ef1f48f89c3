"""`secateur export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from secateur.commands.one_sentence import errors_in_one_sentence, users_errors_in_one_sentence

DYNAMIC = ["batch", "sequence"]


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.", show_default=False)],
    to: Annotated[str, typer.Option(help="onnx, openvino or torch-export.")] = "onnx",
    dynamic: Annotated[
        list[str],
        typer.Option(help="Axes that may change: batch, sequence, image (height and width), or none. May be repeated."),
    ] = DYNAMIC,
    int8: Annotated[
        bool, typer.Option("--int8", help="Compute in int8, calibrated on train_data() and judged on eval_data().")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="The file to write. By default model.onnx, .xml or .pt2 in the run's folder."),
    ] = None,
    task: Annotated[str | None, typer.Option(help="The task, where the run does not tell it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Write the model of a run for another runtime, run it there, and compare it with PyTorch.

    A file that computes something else is not kept.

    Example: secateur export runs/channels-50 --to onnx --int8
    """
    with errors_in_one_sentence(debug, "Stopped. No file was written."):
        from secateur.base import UsageError
        from secateur.commands.runs import task_of_runs
        from secateur.formats import export as export_model
        from secateur.formats import find_format
        from secateur.loop import load_run

        suffix = find_format(to).suffix
        source = task_of_runs([run], task)
        with users_errors_in_one_sentence():
            data: dict[str, Any] = {}
            if int8:
                if (examples := source.train_data()) is None:
                    raise UsageError(f"{source.name} has no train_data, which --int8 finds its ranges on; add it.")
                data = {"calibration_data": examples, "eval_data": source.eval_data()}
                data["metric"] = source.metric
            exported = export_model(
                load_run(run, source.build_model()).model,
                source.example_inputs(),
                out or run / f"model{'.int8' if int8 else ''}{suffix}",
                to=to,
                dynamic=[] if dynamic == ["none"] else dynamic,
                int8=int8,
                **data,
            )
        if as_json:
            import json

            print(json.dumps(exported.to_json(), indent=2))
        else:
            print(f"{exported}\n\n{exported.loading}")
