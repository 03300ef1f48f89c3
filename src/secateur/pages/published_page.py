"""Published speed-ups on GPUs: the data that `published.html.j2` shows, alone or on the page of a hardware report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from secateur.pages.page import save_page
from secateur.pages.published_console import INTRODUCTION
from secateur.studies import BATCHES, GpuFacts, published_claims

LEAST, MOST = 0.02, 6.0
"""The ends of the scale on which speed-ups are drawn; each doubling is as long as the next."""


def save_published_page(facts: GpuFacts, path: str | Path) -> None:
    save_page(path, "published_alone.html.j2", claims=tuple(published_claims().values()), **published_data(facts))


def published_data(facts: GpuFacts) -> dict[str, Any]:
    """For the macro in `published.html.j2`."""
    return {
        "introduction": INTRODUCTION,
        "facts": [(fact, _place(fact.low), _place(fact.speedup), _place(fact.high)) for fact in facts],
        "even": _place(1),
        "answers": {question: facts.answers(question) for question in facts.questions},
        "choices": {
            "question": facts.questions,
            "batch": [batch for batch in BATCHES if batch in {fact.batch for fact in facts}],
            "gpu": facts.gpus,
        },
    }


def _place(speedup: float) -> str:
    """In per cent of the scale."""
    return f"{100 * math.log(speedup / LEAST) / math.log(MOST / LEAST):.1f}"
