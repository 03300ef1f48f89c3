"""`secateur hardware`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from secateur.commands.one_sentence import command_line, errors_in_one_sentence


def hardware(
    again: Annotated[bool, typer.Option("--again", help="Measure even if this machine was measured before.")] = False,
    published: Annotated[
        bool, typer.Option("--published", help="Measure nothing; show what others have published about GPUs.")
    ] = False,
    gpu: Annotated[
        str | None, typer.Option("--gpu", help="With --published: only this GPU, such as 'RTX 4090'.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html",
            "-o",
            help="The file for the page with the charts; secateur-hardware.html unless --published is given.",
            dir_okay=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every measurement as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure what zeros and fewer channels buy on this machine, and which channel counts it likes.

    Takes about three minutes on two cores, best while nothing else runs.

    The result is kept for this machine: the next call shows it at once, and planning uses it.

    Example: secateur hardware --again --html hardware.html

    Example: secateur hardware --published --gpu "RTX 4090"
    """
    with errors_in_one_sentence(debug, f"Stopped; nothing was kept. `{command_line()}` measures from the start."):
        from secateur.base import UsageError

        if gpu is not None and not published:
            raise UsageError("--gpu is for --published; add that, or leave --gpu out.")
        if published and again:
            raise UsageError("--published measures nothing; leave out --published or --again.")
        if published:
            _show_published(gpu, html, as_json)
        else:
            _show_this_machine(again, html or Path("secateur-hardware.html"), as_json)


def _show_published(gpu: str | None, html: Path | None, as_json: bool) -> None:
    from rich.console import Console

    from secateur.pages import print_published
    from secateur.studies import gpu_facts

    facts = gpu_facts(gpu=gpu)
    if as_json:
        print(json.dumps(facts.to_json(), indent=2))
    else:
        print_published(facts, Console())
    if html is not None:
        from secateur.pages import report as write_page

        write_page(facts, out=html)
        if not as_json:
            print(f"The chart is in {html}.")


def _show_this_machine(again: bool, html: Path, as_json: bool) -> None:
    from rich.console import Console

    from secateur.pages import print_hardware
    from secateur.pages import report as write_page
    from secateur.studies import hardware as study_or_recall
    from secateur.studies import load_cached, runtimes_here

    known = None if again else load_cached()
    report = known or study_or_recall(again=True)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        print_hardware(report, Console())
    write_page(report, out=html)  # after the numbers are told: the folder may be read-only
    if not as_json:
        print(f"The charts are in {html}.")
        if known:
            print(f"All of this was measured {report.measured_at}; `secateur hardware --again` measures anew.")
            for runtime in report.not_measured(runtimes_here()):
                print(f"{runtime} was not installed then.")
