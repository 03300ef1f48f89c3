"""`report`: the page of whatever was found out, written as one file that needs no network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from secateur.base import NotWritten, SecateurError, UsageError, require_within
from secateur.bench import Sheet
from secateur.channels import Sensitivity
from secateur.checkpoint import MANIFEST_FILE
from secateur.loop import Result
from secateur.pages.cuda_page import save_gpu_page
from secateur.pages.gather import report_of, report_of_run, with_sheet
from secateur.pages.hardware_page import save_hardware_page
from secateur.pages.overlay_page import save_overlay_page
from secateur.pages.page import PAGE_FILE, PLOTLY_FILE, link, save_plotly
from secateur.pages.published_page import save_published_page
from secateur.pages.run_page import save_run_page
from secateur.pages.run_report import REPORT_FILE, RunReport, load_report, save_report
from secateur.pages.sensitivity_page import save_sensitivity_page
from secateur.pages.sweep_page import save_sweep_page
from secateur.studies import SWEEP_FILE, GpuFacts, GpuReport, HardwareReport, Sweep


def report(
    *what: str | Path | Result | Sweep | Sensitivity | HardwareReport | GpuReport | GpuFacts,
    sheet: Sheet | None = None,
    name: str | None = None,
    runtime: str | None = None,
    out: str | Path | None = None,
) -> Path:
    """Writes a page: what a cut bought and what it cost. Returns its path.

    Args:
        what: the folder of a finished run, or several to compare: accuracy against latency, with the frontier
            marked. Or the folder of a sweep, whose runs get their pages anew, too. Or what `prune`, `sweep`,
            `sensitivity`, `hardware` or `gpu_facts` returned.
        sheet: for runs, what `measure` returned, with the dense model first. The folder of a run keeps it, beside what
            was measured in other runtimes, or with another batch or other threads.
        name: for a run, of its title and of its model on the sheet; by default that of its folder, or "pruned".
        runtime: for several runs, where to compare their latencies; by default each in its fastest one.
        out: the file for the page. By default report.html, in the folder of a single run or of a sweep, otherwise here.
    """
    what = tuple(map(_loaded, what))
    if (sheet, name) != (None, None) and not all(isinstance(each, str | Path | Result) for each in what):
        raise UsageError("A sheet and a name belong to runs; leave them out.")
    if runtime is not None and len(what) < 2:
        raise UsageError("A runtime is for comparing several runs, and a run's own page shows all; leave it out.")
    match what:
        case (Result() as result,):
            save_run_page(_measured(report_of(result, name or "pruned"), sheet), page := Path(out or PAGE_FILE))
        case (Sweep() as found,):
            page = report_sweep(found, out=out)
        case (Sensitivity() as found,):
            save_sensitivity_page(found, page := Path(out or PAGE_FILE))
        case (HardwareReport() as found,):
            save_hardware_page(found, page := Path(out or PAGE_FILE))
        case (GpuFacts() as facts,):
            save_published_page(facts, page := Path(out or PAGE_FILE))
        case (GpuReport() as found,):
            save_gpu_page(found, page := Path(out or PAGE_FILE))
        case (str() | Path() as run,):
            own = _report_of_folder(Path(run), name, sheet)
            save_run_page(own, page := Path(out or Path(run, PAGE_FILE)))
            if sheet is not None:
                save_report(own, run)
        case _:
            _report_together(what, sheet, name, runtime, page := Path(out or PAGE_FILE))
    return page


def report_pruned(
    run: Path, name: str, settings: Mapping[str, Any] | None, sheet: Sheet | None, plotly: Path | None = None
) -> Path:
    """The page of a run that has just ended, in its folder; what the page shows is kept beside it. The latencies stay
    that `measure` added since the run first ended, and the settings where none are given. `plotly` as in `save_page`.
    """
    found = report_of_run(run, name, settings)
    with suppress(SecateurError):
        earlier = load_report(run)
        found = replace(found, sheet=earlier.sheet if earlier.records == found.records else None)
        found = found if settings is not None else replace(found, settings=earlier.settings)
    found = _measured(found, sheet)
    save_report(found, run)
    save_run_page(found, page := run / PAGE_FILE, plotly)
    return page


def report_sweep(
    found: Sweep,
    settings_of: Callable[[Path], Mapping[str, Any] | None] = lambda run: None,
    out: str | Path | None = None,
) -> Path:
    """The page of a sweep, by default in its folder, and those of its runs, with the settings of each by its folder. In
    a folder that cannot be written, the runs keep whatever pages are there."""
    with suppress(NotWritten):
        _report_runs(found, settings_of)
    save_sweep_page(found, page := Path(out or found.folder / PAGE_FILE))
    return page


def _report_runs(found: Sweep, settings_of: Callable[[Path], Mapping[str, Any] | None]) -> None:
    """The pages of those whose folders are there. They share one plotly.js, which is as large as fifty of them."""
    runs = [run.name for run in found.finished if (found.folder / run.name / MANIFEST_FILE).exists()]
    plotly = found.folder / PLOTLY_FILE
    if runs:
        save_plotly(plotly)
    for name in runs:
        run = found.folder / name
        require_within(found.folder, run)
        sheet = next((sheet for sheet in found.sheets if name in sheet.footprints), None)
        report_pruned(run, name, settings_of(run), sheet, plotly)


def _loaded(what: Any) -> Any:
    """The sweep that a folder holds; anything else as it is."""
    return Sweep.load(what) if isinstance(what, str | Path) and Path(what, SWEEP_FILE).is_file() else what


def _report_together(
    what: Sequence[Any], sheet: Sheet | None, name: str | None, runtime: str | None, page: Path
) -> None:
    if not what or not all(isinstance(each, str | Path) for each in what):
        raise UsageError(
            "Give folders of runs, or one sweep, or one thing that prune, sensitivity or hardware returned."
        )
    if name is not None:
        raise UsageError("Several runs are called like their folders; leave name out.")
    reports = {run: _report_of_folder(run, None, sheet) for run in dict.fromkeys(map(Path, what))}
    names = _names(list(reports))
    links = {names[run]: link(run / PAGE_FILE, page) for run, each in reports.items() if _has_page(run, each)}
    save_overlay_page({names[run]: each for run, each in reports.items()}, page, links, runtime)
    if sheet is not None:
        for run, each in reports.items():
            save_report(each, run)


def _has_page(run: Path, found: RunReport) -> bool:
    """Made anew; in a folder that cannot be written, whatever page is there."""
    try:
        save_run_page(found, run / PAGE_FILE)
    except NotWritten:
        return (run / PAGE_FILE).exists()
    return True


def _report_of_folder(run: Path, name: str | None, sheet: Sheet | None) -> RunReport:
    """As the folder keeps it, or, where only Python was at work, from the run's checkpoint."""
    if (run / MANIFEST_FILE).exists() and not (run / REPORT_FILE).exists():
        require_within(run, run / MANIFEST_FILE)
        found = report_of_run(run, name or run.resolve().name)
    else:
        found = load_report(run)
        found = replace(found, name=name or found.name)
    return _measured(found, sheet)


def _measured(found: RunReport, sheet: Sheet | None) -> RunReport:
    return found if sheet is None else with_sheet(found, sheet)


def _names(runs: list[Path]) -> dict[Path, str]:
    """The folders' own names, or their paths where two are called alike."""
    own = [run.name for run in runs]
    return {run: run.name if run.name and own.count(run.name) == 1 else str(run) for run in runs}
