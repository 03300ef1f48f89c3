"""int8: from a float file that is known to be right, by the runtime's own tool, with what it cost and bought."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from secateur.base import SecateurError, explaining
from secateur.bench import Timing, time_in_turns, timing_conditions
from secateur.formats.calibration import calibration_inputs
from secateur.formats.checked_file import CheckedFile, run_and_compare
from secateur.formats.exported import Int8
from secateur.formats.file_model import FileModel, evaluate
from secateur.loop import Metric, name_of_metric

TIMING_SECONDS = 5.0


def quantise(
    dense: CheckedFile,
    path: Path,
    calibration_data: Any,
    eval_data: Any,
    metric: Metric,
    begin: Callable[[str], None],
) -> tuple[CheckedFile, Int8]:
    """`begin` is told of three steps."""
    quantiser = dense.format.require_quantiser()
    dense_model = FileModel(dense.loaded, dense.interface)
    begin("calibrating int8")
    calls, examples = calibration_inputs(dense_model, calibration_data, metric)
    with explaining(f"{quantiser.package} cannot make the model int8", "export it without int8.", SecateurError):
        quantiser.write(dense.path, path, calls)
    loaded, found = run_and_compare(dense.format, path, dense.expected)
    begin(f"measuring the {name_of_metric(metric)} of the float and the int8 file")
    before = evaluate(dense_model, eval_data, metric)
    after = evaluate(FileModel(loaded, dense.interface), eval_data, metric)
    begin("timing them in turn")
    timing, control = _timed(dense, path)
    int8 = Int8(name_of_metric(metric), before, after, dense.file_bytes, examples, timing, control)
    return replace(dense, path=path, loaded=loaded, found=found, precision="int8"), int8


def _timed(dense: CheckedFile, path: Path) -> tuple[Timing, Timing]:
    """Of the int8 file and of the null control, on one thread and the example inputs."""
    with timing_conditions(threads=1):
        open_file = dense.format.open_to_time or dense.format.open
        loaded = [open_file(each, 1) for each in (dense.path, path, dense.path)]
        first, int8, again = (each.bind(dense.expected[0].inputs) for each in loaded)
        turns = time_in_turns(
            {"float": first, "int8": int8}, control=again, clock=loaded[0].clock, max_seconds=TIMING_SECONDS
        )
    return turns["int8"], turns.control
