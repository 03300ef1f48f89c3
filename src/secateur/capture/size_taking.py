"""What takes sizes from Python code, torch functions and ATen calls alike, by the way it takes them: one table for all.

These are written down even where all sizes are literals, because a literal cannot follow a cut. `couple` has a function
for each way, and trusts no such call whose Python code was not seen.
"""

from __future__ import annotations

_BY_WAY = {
    "shape of what it makes": """zeros ones empty full rand randn""",
    "shape of what it makes, after a tensor": """view reshape expand broadcast_to new_zeros new_ones new_empty new_full
        _unsafe_view _reshape_alias""",
    "strides": "empty_strided new_empty_strided empty_permuted",
    "parts of an axis": "unflatten",
    "number of classes": "one_hot",
    "pieces": "split split_with_sizes split_copy split_with_sizes_copy unsafe_split unsafe_split_with_sizes",
    "number of pieces, or bounds": "tensor_split hsplit vsplit dsplit",
    "strides of a view": "as_strided as_strided_",
    "strides that gaps are in": "stride",
    "start and length": "narrow",
    "length": "__len__",
    "index": "__getitem__ __setitem__ slice",
    "normalised shape": "layer_norm rms_norm native_layer_norm",
    "number of groups": "group_norm",
    "all of its sizes": "native_group_norm",
    "convolution": "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d",
    "repeats of each axis": "repeat tile",
    "repeats of one axis": "repeat_interleave",
    "padding": "pad constant_pad_nd",
    "shift": "roll",
}
TAKES_SIZES = {name: way for way, names in _BY_WAY.items() for name in names.split()}
