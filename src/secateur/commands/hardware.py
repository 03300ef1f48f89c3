"""`secateur hardware`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from secateur.commands.one_sentence import command_line, errors_in_one_sentence


def hardware(
    device: Annotated[str, typer.Option(help="cpu, or cuda for this machine's GPU.")] = "cpu",
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
            help="The file for the page with the charts; by default secateur-hardware.html, secateur-gpu.html with "
            "--device cuda, and none with --published.",
            dir_okay=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every measurement as JSON.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure what zeros and fewer channels buy on this machine, and which channel counts it likes.

    Takes about three minutes on two cores, or a minute on a GPU with --device cuda, best while nothing else runs.

    The result is kept for this machine: the next call shows it at once, and planning uses it.

    Example: secateur hardware --again --html hardware.html

    Example: secateur hardware --published --gpu "RTX 4090"
    """
    with errors_in_one_sentence(debug, f"Stopped; nothing was kept. `{command_line()}` measures from the start."):
        from secateur.base import UsageError

        if gpu is not None and not published:
            raise UsageError("--gpu is for --published; add that, or leave --gpu out.")
        if published and (again or device != "cpu"):
            raise UsageError("--published measures nothing; leave out --published, or --again and --device.")
        if published:
            _show_published(gpu, html, as_json)
        else:
            page = Path("secateur-hardware.html" if device == "cpu" else "secateur-gpu.html")
            _show_this_machine(device, again, html or page, as_json)


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


def _show_this_machine(device: str, again: bool, html: Path, as_json: bool) -> None:
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
            print(f"All of this was measured {report.measured_at}; `secateur hardware{option} --again` measures anew.")
        if isinstance(known, HardwareReport):
            for runtime in known.not_measured(runtimes_here()):
                print(f"{runtime} was not installed then.")
