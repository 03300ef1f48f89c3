"""`gpu_facts`: published speed-ups on GPUs, each with its source. They are shown as they are; nothing is predicted."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from secateur.base import UsageError, aligned, did_you_mean, require_one_of, to_json

QUESTIONS = ("zeros anywhere", "blocks", "2:4", "fewer channels", "odd widths")
BATCHES = ("batch 1", "small batch", "wide batch")


@dataclass(frozen=True)
class GpuFact:
    """The speed-up of one kernel on one GPU: the median of several shapes, and how far they reach."""

    question: str
    """One of "zeros anywhere", "blocks", "2:4", "fewer channels" and "odd widths"."""
    batch: str
    """One of "batch 1", "small batch" and "wide batch"."""
    gpu: str
    kernel: str
    what: str
    """The layers or the model."""
    rows: str
    """Of the batch, or tokens."""
    zeros: str
    speedup: float
    """Above 1 is faster than the baseline."""
    low: float
    high: float
    count: int
    """How many measurements the median and the range are of."""
    baseline: str
    """What it was compared with; "" where the source does not say."""
    software: str
    note: str
    source: str
    """An address."""

    @property
    def pays(self) -> str:
        """ "yes" or "no" where all of the range says so."""
        return "yes" if self.low > 1 else "no" if self.high < 1 else "depends"

    @property
    def span(self) -> str:
        return f"{self.speedup:.2f} ({self.low:.2f}–{self.high:.2f})" if self.low < self.high else f"{self.speedup:.2f}"

    @property
    def compared(self) -> str:
        """With which baseline, in which software, as far as they are known."""
        known = [f"against {self.baseline}" if self.baseline else "", self.software]
        return ", ".join(filter(None, known)) or "baseline not named"


@dataclass(frozen=True)
class GpuFacts:
    """What `gpu_facts` returns; `print(facts)` shows them as a table, and going over them gives each `GpuFact`."""

    facts: tuple[GpuFact, ...]

    def __iter__(self) -> Iterator[GpuFact]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def questions(self) -> tuple[str, ...]:
        """Those that are answered, in order."""
        return tuple(dict.fromkeys(fact.question for fact in self))

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(sorted({fact.gpu for fact in self}))

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(fact.source for fact in self))

    def of(self, question: str, batch: str | None = None) -> GpuFacts:
        return GpuFacts(tuple(f for f in self if f.question == question and batch in (None, f.batch)))

    def answers(self, question: str) -> list[str]:
        """A sentence for each kind of batch that was measured."""
        return [_answer(batch, facts) for batch in BATCHES if len(facts := self.of(question, batch))]

    def to_json(self) -> dict[str, Any]:
        facts: dict[str, Any] = to_json(self)
        return facts

    def __str__(self) -> str:
        """In 80 columns, with the sources at the end."""
        lines = []
        for question in self.questions:
            lines += [f"{question[0].upper()}{question[1:]}", *self.answers(question), "", *self._table(question), ""]
        return "\n".join([*lines, *(f"[{i}] {source}" for i, source in enumerate(self.sources, 1))])

    def _table(self, question: str) -> list[str]:
        """The facts of one kernel from one source below each other, then what is to be known about them."""
        found = self.of(question)
        with_zeros = len({fact.zeros for fact in found}) > 1
        head = ["  speed-up", "GPU", *(["zeros"] if with_zeros else []), "batch", "of"]
        rows = [[f"  {f.span}", f.gpu, *([f.zeros] if with_zeros else []), f.rows, f.what] for f in found]
        first, *body = aligned([head, *rows])
        below: dict[str, list[str]] = {}
        notes: dict[str, dict[str, None]] = {}
        for fact, line in zip(found, body, strict=True):
            kernel = f"{fact.kernel} [{self.sources.index(fact.source) + 1}], {fact.compared}"
            below.setdefault(kernel, []).append(line)
            notes.setdefault(kernel, {}).update({f"  {fact.note}": None} if fact.note else {})
        return [first, *(line for kernel in below for line in (kernel, *below[kernel], *notes[kernel]))]


def gpu_facts(question: str | None = None, *, gpu: str | None = None) -> GpuFacts:
    """What others measured on GPUs: how much faster zeros, blocks, 2:4 and fewer channels were than dense.

    43 facts, drawn from about 7,900 published measurements.

    Args:
        question: one of "zeros anywhere", "blocks", "2:4", "fewer channels" and "odd widths"; by default all.
        gpu: a part of a GPU's name, such as "4090"; by default all.
    """
    if question is not None:
        require_one_of("question", question, QUESTIONS)
    known = GpuFacts(tuple(fact for fact in _read() if question in (None, fact.question)))
    if gpu is None:
        return known
    found = GpuFacts(tuple(fact for fact in known if gpu.casefold() in fact.gpu.casefold()))
    if not len(found):
        hint = did_you_mean(gpu, known.gpus, f"choose from {', '.join(known.gpus)}.")
        raise UsageError(f"Nothing published on {gpu!r} is known; {hint}")
    return found


@cache
def _read() -> tuple[GpuFact, ...]:
    numbers = {"float": float, "int": int, "str": str}
    kinds = {field.name: numbers[str(field.type)] for field in fields(GpuFact)}
    text = (files("secateur.studies.published") / "gpu_facts.csv").read_text(encoding="utf-8")
    return tuple(
        GpuFact(**{name: kinds[name](cell) for name, cell in row.items()}) for row in csv.DictReader(text.splitlines())
    )


def _answer(batch: str, facts: GpuFacts) -> str:
    pays = [fact.pays for fact in facts]
    said = {"yes": "faster", "no": "slower", "depends": "either, by shape"}
    counted = ", ".join(f"{pays.count(answer)} {word}" for answer, word in said.items() if answer in pays)
    medians = sorted(fact.speedup for fact in facts)
    reach = f"{medians[0]:.2f}–{medians[-1]:.2f}" if len(medians) > 1 else f"{medians[0]:.2f}"
    origins = len({_origin(source) for source in facts.sources})
    sources = "one source" if origins == 1 else f"{origins} sources"
    return f"{batch.capitalize()}: {reach} × as fast as dense ({counted}; {sources})."


def _origin(source: str) -> str:
    """The repository or the page: files of one repository are one source."""
    return "/".join(source.split("/")[:5])
