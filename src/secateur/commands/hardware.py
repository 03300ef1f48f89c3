"""`secateur hardware`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.commands.one_sentence import command_line, errors_in_one_sentence


def hardware(
    again: Annotated[bool, typer.Option("--again", help="Measure even if this machine was measured before.")] = False,
    html: Annotated[
        Path, typer.Option("--html", "-o", help="The file for the page with the charts.", dir_okay=False)
    ] = Path("secateur-hardware.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print every measurement as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure what zeros and fewer channels buy on this machine, and which channel counts it likes.

    Takes about three minutes on two cores, best while nothing else runs.

    The result is kept for this machine: the next call shows it at once, and planning uses it.

    Example: secateur hardware --again --html hardware.html
    """
    with errors_in_one_sentence(debug, f"Stopped; nothing was kept. `{command_line()}` measures from the start."):
        from rich.console import Console

        from secateur.pages import print_hardware
        from secateur.pages import report as write_page
        from secateur.studies import hardware as study_or_recall
        from secateur.studies import load_cached, runtimes_here

        known = None if again else load_cached()
        report = known or study_or_recall(again=True)
        if as_json:
            import json

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
