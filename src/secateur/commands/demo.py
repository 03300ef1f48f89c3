"""`secateur demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.commands.one_sentence import command_line, errors_in_one_sentence


def demo(
    data: Annotated[
        str | None,
        typer.Option(
            help='A folder with the four Fashion-MNIST IDX files, or "full" for the one that Debian\'s '
            "dataset-fashion-mnist installs; otherwise the subset in the package.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder for models and results.", file_okay=False)
    ] = Path("secateur-demo"),
    epochs: Annotated[float, typer.Option(help="Epochs to train the dense network for.", min=0.01)] = 10,
    seed: Annotated[int, typer.Option(help="For the weights and the order of the data.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train a small CNN, prune it in several ways, and compare accuracy, size and speed.

    Takes about three minutes on two cores. Interrupted, the same command goes on where it stopped.

    Example: secateur demo --seed 1 --out demo-1
    """
    with errors_in_one_sentence(debug, f"Stopped. `{command_line()}` continues from the last finished epoch."):
        from rich.console import Console

        from secateur.examples import find_folder
        from secateur.pages import print_demo, report, save_curve
        from secateur.studies import run_demo

        outcome = run_demo(out, find_folder(data), epochs, seed)
        save_curve({version.name: version.result for version in outcome.versions}, out / "curve.html")
        pruned = [out / folder for folder in outcome.sheet.footprints if folder != outcome.sheet.baseline]
        report(*pruned, sheet=outcome.sheet, out=out / "report.html")
        if as_json:
            import json

            print(json.dumps(outcome.to_json(), indent=2))
        else:
            print_demo(outcome, Console())
            print(f"\n{out}/report.html compares the versions, {out}/curve.html shows how they were trained.")
