"""Numbers, names and plain-text tables, as objects print them of themselves."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

_LONGEST_WORD = 300
"""A path is hardly ever longer."""
_LONGEST_SENTENCE = 1500
"""Of a screen with 24 lines of 80 letters."""
_WIDTH_ELSEWHERE = 120
"""Of what is printed into a file or a notebook."""


def aligned(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """The rows with their columns aligned, those numbered in `right` to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def printable(text: str) -> str:
    """Without what a terminal takes for a command, and without what no file can hold."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else " " for letter in text)


def joined_lines(lines: Iterable[str]) -> str:
    """As an object prints itself: names in it may come from a stranger's file."""
    return "\n".join(map(printable, lines))


def on_a_screen(text: str) -> str:
    """A sentence that fits on a screen and prints safely, whatever names are in it."""
    words = re.sub(
        rf"\S{{{_LONGEST_WORD},}}", lambda word: _shortened(word[0], _LONGEST_WORD), _shortened(text, 1 << 16)
    )
    return _shortened(printable(words), _LONGEST_SENTENCE)


def _shortened(text: str, most: int) -> str:
    """What begins a sentence tells what is wrong, and what ends it tells what to do."""
    return text if len(text) <= most else f"{text[: 2 * most // 3]}…{text[-most // 4 :]}"


def screen_width() -> int:
    """Letters in a line of the terminal; of anything else, a fixed number."""
    return shutil.get_terminal_size((_WIDTH_ELSEWHERE, 24)).columns


def wrapped(lines: Iterable[str]) -> list[str]:
    """Sentences within the terminal's width; what goes on in another line is indented."""
    wrapper = textwrap.TextWrapper(
        screen_width(), subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [part for line in lines for part in wrapper.wrap(line)]


def short_name(name: str, most: int) -> str:
    """A layer's name within `most` letters. Its numbers and its end, which tell it from others, stay longest."""
    parts = _shortened(name, _LONGEST_WORD).split(".")
    left = [i for i, part in enumerate(parts) if 0 < i < len(parts) - 1 and not part.isdigit()]
    while len(text := re.sub(r"\.?(…\.)+", "…", ".".join(parts))) > most and left:
        parts[left.pop(0)] = "…"
    head = (most - 1) // 3
    return text if len(text) <= most else re.sub("…+", "…", f"{text[:head]}…{text[len(text) + 1 + head - most :]}")


def install_hint(extra: str) -> str:
    """How to get what an extra of the package needs, from the folder that secateur itself was installed from."""
    return f"pip install '.[{extra}]'"


def count_text(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def some_of(names: Sequence[str], most: int = 3, between: str = ", ") -> str:
    more = f" +{len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def metric_text(metric_name: str, value: float) -> str:
    """Accuracy in per cent; of another metric nobody knows the unit."""
    return f"{value:.1%}" if metric_name == "accuracy" else f"{value:.4g}"


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def short_count(count: float) -> str:
    """Three digits and a unit, such as 10.2 M."""
    for unit in " kMG":
        if count < 999.5:
            return f"{count:.3g} {unit}".rstrip()
        count /= 1000
    return f"{count:.3g} T"


def byte_text(count: float) -> str:
    text = short_count(count)
    return f"{text}B" if " " in text else f"{text} B"


def moment_now() -> str:
    """The date and the time of day, with the distance to UTC."""
    return datetime.now().astimezone().isoformat(" ", "minutes")


def threads_text(threads: int) -> str:
    return "one thread" if threads == 1 else f"{threads} threads"
