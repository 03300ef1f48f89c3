"""Scaled dot-product attention, whole: queries and keys share their width, keys and values their positions."""

from __future__ import annotations

from secateur.capture import OpCall
from secateur.couple.coupling import Coupling
from secateur.couple.rules.registry import rule
from secateur.couple.units import Axis


@rule(
    "scaled_dot_product_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math",
)
def attention(coupling: Coupling, call: OpCall) -> None:
    query, key, value = call["query"], call["key"], call["value"]
    queries, keys, values = (list(coupling.axes(each)) for each in (query, key, value))
    coupling.tie(call, queries[-1], keys[-1])
    coupling.tie(call, keys[-2], values[-2])
    coupling.read(queries[-1])
    coupling.read(keys[-2])
    if call["scale"] is None:
        coupling.pin(call, "the attention scale is computed from its width", queries[-1])
    for i in range(len(queries) - 2):
        coupling.tie(call, keys[i], values[i])
        queries[i] = _same_heads(coupling, call, queries[i], keys[i])
        coupling.note_heads(queries[i])
    scores = [*queries[:-1], keys[-2]]
    mask = call["attn_mask"] if "attn_mask" in call.args else call["attn_bias"]
    if mask is not None:
        offset = len(scores) - len(mask.shape)
        for i, axis in enumerate(coupling.axes(mask)):
            if mask.shape[i] > 1:
                coupling.tie(call, axis, scores[i + offset])
    coupling.count_macs(call, [*scores, queries[-1]])
    coupling.count_macs(call, [*scores, values[-1]])
    out, *extras = call.outputs
    coupling.set(out, [*queries[:-1], values[-1]], call)
    for extra in extras:
        coupling.set_fixed(extra, call)


def _same_heads(coupling: Coupling, call: OpCall, queries: Axis, keys: Axis) -> Axis:
    if queries.shape[1] == keys.shape[1]:
        return coupling.tie(call, queries, keys)
    if call["enable_gqa"] and keys.shape[1] > 1:
        shared, _ = coupling.split(call, queries, (keys.shape[1], queries.shape[1] // keys.shape[1]))
        coupling.tie(call, shared, keys)
    elif keys.shape[1] > 1:
        coupling.pin(call, "its heads do not match", queries, keys)
    return queries
