"""`secateur report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.commands.one_sentence import errors_in_one_sentence


def report(
    runs: Annotated[list[Path], typer.Argument(help="The folder of a finished run or of a sweep, or several runs.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The file for the page. By default report.html in that folder; for several runs, here.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="For several runs: where to compare their latencies. By default each in its fastest."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Write the page of a run: what the cut bought and what it cost. It is one file and needs no network.

    Several runs are compared: accuracy against milliseconds, with the frontier marked. So are those of a sweep.

    Example: secateur report runs/channels-50 runs/zeros-90 -o compared.html
    """
    with errors_in_one_sentence(debug, "Stopped. A page that was there before is intact."):
        from secateur.pages import report as write_report

        print(f"The page is {write_report(*runs, runtime=runtime, out=out)}.")
