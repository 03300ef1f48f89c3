"""What people say about pruned models, judged by what others measured on GPUs."""

from __future__ import annotations

from collections.abc import Iterable

from secateur.studies.machine.claims import CAN_BE_SLOWER, COUNTS_MATTER, IN_ONE_LAYER, ONLY_TENSOR_CORES, Claim
from secateur.studies.published.gpu_facts import GpuFact, GpuFacts, gpu_facts

ABOUT_TWICE = (1.8, 2.3)
"""Speed-ups that count as about 2.04, the share of the MACs that went."""


def published_claims() -> dict[str, Claim]:
    """By the text of the claim. Those on whole networks are not there: nothing that is published here answers them."""
    facts = gpu_facts()
    claims = (_can_be_slower(facts), _only_tensor_cores(facts), _in_one_layer(facts), _counts_matter(facts))
    return {claim.text: claim for claim in claims}


def _can_be_slower(facts: GpuFacts) -> Claim:
    at_90 = [fact for fact in facts.of("zeros anywhere") if fact.zeros == "90 %"]
    wide, one = ([fact for fact in at_90 if fact.batch == batch] for batch in ("wide batch", "batch 1"))
    because = f"Speed-ups with a wide batch: {_listed(wide)}. At batch 1: {_listed(one)}."
    return Claim(CAN_BE_SLOWER, any(fact.pays == "no" for fact in at_90), because)


def _only_tensor_cores(facts: GpuFacts) -> Claim:
    without = [fact for fact in facts.of("zeros anywhere") if fact.pays == "yes"]
    half = [fact for fact in without if fact.zeros == "50 %"]
    wide = [fact for fact in without if fact.batch == "wide batch"]
    cores = [fact for fact in facts.of("2:4", "wide batch") if fact.kernel == "cuSPARSELt bf16"]
    disputed = [f"{fact.span} on {fact.gpu}, but {fact.note}" for fact in facts.of("2:4") if "baseline" in fact.note]
    because = (
        f"Without them, at batch 1: {_listed(half)}. Without them, with a wide batch: {_listed(wide)}. With them, for "
        f"2,048 rows and more: {_listed(cores)}; {'; '.join(disputed)}."
    )
    return Claim(ONLY_TENSOR_CORES, not without, because)


def _in_one_layer(facts: GpuFacts) -> Claim:
    narrower = facts.of("fewer channels", "wide batch")
    low, high = ABOUT_TWICE
    held = all(low <= fact.low and fact.high <= high for fact in narrower)
    because = f"30 % narrower on both sides, with 2.04 × fewer MACs: {_listed(narrower)}, from one source."
    return Claim(IN_ONE_LAYER, held, because)


def _counts_matter(facts: GpuFacts) -> Claim:
    odd = facts.of("odd widths")
    because = " ".join(f"{fact.what} on {fact.gpu}: {fact.note}." for fact in odd)
    return Claim(COUNTS_MATTER, any(fact.pays == "no" for fact in odd), because)


def _listed(facts: Iterable[GpuFact]) -> str:
    """By kernel and share of zeros, each GPU with its speed-up."""
    found: dict[str, list[str]] = {}
    for fact in facts:
        zeros = "" if fact.zeros == "–" else f" at {fact.zeros} zeros"
        found.setdefault(f"{fact.kernel}{zeros}", []).append(f"{fact.span} on {fact.gpu}")
    return "; ".join(f"{kernel} {', '.join(spans)}" for kernel, spans in found.items())
