"""`secateur hardware`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from secateur.commands.one_sentence import command_line, errors_in_one_sentence


def hardware(
    device: Annotated[str, typer.Option(help="cpu, or cuda for this machine's GPU.")] = "cpu",
    again: Annotated[bool, typer.Option("--again", help="Measure even if this machine was measured before.")] = False,
    html: Annotated[
        Path, typer.Option("--html", "-o", help="The file for the page with the charts.", dir_okay=False)
    ] = Path("secateur-hardware.html"),
    as_json: Annotated[bool, typer.Option("--json", help="Print every measurement as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure what zeros and fewer channels buy on this machine, and which channel counts it likes.

    Takes about three minutes on two cores, or a minute on a GPU with --device cuda, best while nothing else runs.

    The result is kept for this machine: the next call shows it at once, and planning uses it.

    Example: secateur hardware --again --html hardware.html
    """
    with errors_in_one_sentence(debug, f"Stopped; nothing was kept. `{command_line()}` measures from the start."):
        from rich.console import Console

        from secateur.bench import require_device
        from secateur.pages import print_gpu, print_hardware
        from secateur.pages import report as write_page
        from secateur.studies import GpuReport, HardwareReport, load_cached, load_cached_gpu, runtimes_here
        from secateur.studies import hardware as study_or_recall

        require_device(device)
        known = None if again else load_cached() if device == "cpu" else load_cached_gpu()
        report = known or study_or_recall(device=device, again=True)
        if as_json:
            import json

            print(json.dumps(report.to_json(), indent=2))
        elif isinstance(report, GpuReport):
            print_gpu(report, Console())
        else:
            print_hardware(report, Console())
        write_page(report, out=html)  # after the numbers are told: the folder may be read-only
        if not as_json:
            print(f"The charts are in {html}.")
            if known:
                option = "" if device == "cpu" else f" --device {device}"
                again_with = f"`secateur hardware{option} --again`"
                print(f"All of this was measured {report.measured_at}; {again_with} measures anew.")
            if isinstance(known, HardwareReport):
                for runtime in known.not_measured(runtimes_here()):
                    print(f"{runtime} was not installed then.")
