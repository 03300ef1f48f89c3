"""A report as version 0.1.0 stored it: the fields of a sheet lay flat among the others."""

from __future__ import annotations

import re
from typing import Any

from secateur.base import Damaged

_MOVED = "verdict recovered macs macs_of latencies not_measured".split()
_REFUSAL = re.compile(r"Not measured(?: with batch (\d+))?: (.*)", re.DOTALL)


def from_version_1(stored: Any) -> Any:
    """The JSON of version 1 as that of version 2; any other as it is."""
    if not isinstance(stored, dict) or stored.get("version") != 1:
        return stored
    try:
        measured = stored["macs_of"] == "one example"
        return {
            **{key: value for key, value in stored.items() if key not in _MOVED},
            "version": 2,
            "layers": {layer["name"]: [layer["left"], layer["total"]] for layer in stored["layers"]},
            "planned_macs": None if measured else stored["macs"] or None,
            "sheet": _sheet(stored) if measured else None,
        }
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from error


def _sheet(stored: dict[str, Any]) -> dict[str, Any]:
    records = stored["records"]
    dense = [record for record in records if record["phase"] in ("before", "train")][-1]
    sizes = {"dense": dense["size"], "pruned": records[-1]["size"]}
    precision = stored["latencies"][0]["precision"] if stored["latencies"] else "unknown"
    return {
        "baseline": "dense",
        "footprints": {
            name: {"size": size, "macs": macs, "precision": precision}
            for (name, size), macs in zip(sizes.items(), stored["macs"], strict=True)
        },
        "measurements": [_measurement(item, stored["machine"]) for item in stored["latencies"]],
        "refusals": [_refusal(sentence) for sentence in stored["not_measured"]],
        "machine": stored["machine"],
    }


def _measurement(item: dict[str, Any], machine: Any) -> dict[str, Any]:
    comparison = {key: item[key] for key in ("runtime", "precision", "threads", "control")}
    timings = {"dense": item["dense"], "pruned": item["pruned"]}
    peaks = dict(zip(timings, item["peak_megabytes"], strict=True))
    comparison |= {"baseline": "dense", "timings": timings, "machine": machine, "notes": {}}
    return {"batch": item["batch"], "comparison": comparison, "peak_megabytes": peaks}


def _refusal(sentence: str) -> dict[str, Any]:
    found = _REFUSAL.fullmatch(sentence)
    batch, reason = found.groups() if found else (None, sentence)
    return {"runtime": "", "model": "pruned", "batch": batch and int(batch), "reason": reason}
