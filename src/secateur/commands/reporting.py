"""The report of a run, in its folder: written when the run ends, and again when it is measured."""

from __future__ import annotations

from pathlib import Path

from secateur.bench import Sheet
from secateur.checkpoint import WEIGHTS_FILE
from secateur.commands.report import PAGE_FILE
from secateur.commands.settings import SETTINGS_FILE, read_settings
from secateur.loop import Result
from secateur.pages import report_of, save_report, save_run_page

__all__ = ["write_report"]


def write_report(run: Path, name: str, result: Result, sheet: Sheet | None) -> Path:
    """The page; what it shows is kept beside it, for pages that lay several runs over one another."""
    file = run / SETTINGS_FILE
    settings = read_settings(file) if file.is_file() else {}
    stored = (run / WEIGHTS_FILE).stat().st_size
    report = report_of(result, sheet, name=name, settings=settings, file_bytes=stored)
    save_report(report, run)
    page = run / PAGE_FILE
    save_run_page(report, page)
    return page
