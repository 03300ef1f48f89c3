"""`secateur report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.commands.one_sentence import errors_in_one_sentence

__all__ = ["report"]

PAGE_FILE = "report.html"


def report(
    runs: Annotated[list[Path], typer.Argument(help="A folder that prune wrote, or several to lay over one another.")],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help=f"The file for the page. By default {PAGE_FILE} in the run's folder; for several runs, here.",
            dir_okay=False,
            show_default=False,
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Write the page of a run: what the cut bought and what it cost. It is one file and needs no network.

    Several runs are laid over one another: accuracy against latency, with the frontier marked.

    Example: secateur report runs/channels-50 runs/zeros-90 -o compared.html
    """
    with errors_in_one_sentence(debug, "Stopped. A page that was there before is intact."):
        from secateur.pages import load_report, save_overlay_page, save_run_page

        reports = {run: load_report(run) for run in dict.fromkeys(runs)}
        if len(reports) == 1:
            [(run, only)] = reports.items()
            page = out or run / PAGE_FILE
            save_run_page(only, page)
        else:
            page = out or Path(PAGE_FILE)
            for run, each in reports.items():
                save_run_page(each, run / PAGE_FILE)  # the overlay links to them
            names = _names(list(reports))
            save_overlay_page(
                {names[run]: each for run, each in reports.items()},
                page,
                {names[run]: _link(run / PAGE_FILE, page) for run in reports},
            )
        print(f"The page is {page}.")


def _names(runs: list[Path]) -> dict[Path, str]:
    """The folders' own names, or their paths where two are called alike."""
    own = [run.name for run in runs]
    return {run: run.name if run.name and own.count(run.name) == 1 else str(run) for run in runs}


def _link(target: Path, page: Path) -> str:
    """From one page to another, as a browser reads it."""
    from os.path import relpath
    from urllib.parse import quote

    return quote(Path(relpath(target, page.parent)).as_posix())
