"""The compiled kernels, through a plain C interface. ctypes lets go of the interpreter's lock while they run."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_int64, c_void_p
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from secateur.base import SecateurError, UsageError
from secateur.sparse.packed import PackedMatrix

ACTIVATIONS = ("none", "relu", "relu6", "gelu")
_VERSION = 8


class _Matrix(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("rows", "columns", "panel_width", "panels", "block", "index_bytes")),
        *((name, c_void_p) for name in ("starts", "order", "indices", "values")),
    ]


class Columns(Structure):
    """Where the columns come from that a matrix is multiplied with: `Source` in layer.h, which says what each is."""

    _fields_ = [
        ("data", c_void_p),
        *((name, c_int64) for name in ("columns", "row_stride", "image_stride", "out_height", "out_width")),
        ("offsets", c_void_p),
        ("may_overread", c_int64),
    ]


class _Finish(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("output", "bias", "residual")),
        *((name, c_int64) for name in ("stride", "plane", "activation")),
    ]


class Prepared(Structure):
    """A layer, but for what it reads and writes: `Layer` in layer.h."""

    _fields_ = [("matrix", _Matrix), ("source", Columns), ("finish", _Finish)]


class Margins(Structure):
    """A convolution's input and what becomes of it: as in layer.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("input", "output", "spans")),
        *((name, c_int64) for name in ("planes", "height", "width", "plane", "top", "out_rows", "row_step")),
        *((name, c_int64) for name in ("phases", "phase_width", "column_step")),
    ]


class Depthwise(Structure):
    """A depthwise convolution, but for what it reads and writes: as in layer.h."""

    _fields_ = [
        ("margins", Margins),
        *((name, c_void_p) for name in ("weights", "bias", "residual", "output", "offsets")),
        *((name, c_int64) for name in ("taps", "images", "outputs", "outputs_per_input")),
        *((name, c_int64) for name in ("out_height", "out_width", "row_stride", "activation", "plain_step")),
    ]


class DepthwiseBlock(Structure):
    """A depthwise convolution between two sparse ones: `Block` in layer.h."""

    _fields_ = [
        ("first", Prepared),
        ("middle", Depthwise),
        ("last", Prepared),
        *((name, c_int64) for name in ("has_first", "image_stride", "kernel_rows", "rows_between", "strip")),
        ("rest_offsets", c_void_p),
    ]


class Pooling(Structure):
    """A max pooling: as in layer.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("input", "output")),
        *((name, c_int64) for name in ("planes", "height", "width", "out_height", "out_width")),
        *((name, c_int64) for name in ("kernel_height", "kernel_width", "row_step", "column_step", "top", "left")),
    ]


def why_missing() -> str | None:
    """None where the kernels can run; else the reason, to end a sentence with."""
    try:
        _library()
    except SecateurError as error:
        return str(error)
    return None


def prepare(matrix: PackedMatrix, columns: Columns, *, stride: int, bias: Tensor | None, activation: str) -> Prepared:
    """What stays the same for all inputs of one shape; `stride` leads from one example or image of the output to the
    next. It points into the buffers of the matrix and the bias, and is of use only as long as they are there."""
    sizes = matrix.rows, matrix.columns, matrix.panel_width, matrix.panels, matrix.block, matrix.indices.element_size()
    parts = (part.data_ptr() for part in (matrix.starts, matrix.order, matrix.indices, matrix.values))
    addresses = None, None if bias is None else bias.data_ptr(), None
    plane = columns.out_height * columns.out_width
    finish = _Finish(*addresses, stride, plane, ACTIVATIONS.index(activation))
    return Prepared(_Matrix(*sizes, *parts), columns, finish)


def run(prepared: Prepared, data: int, residual: int | None, output: int) -> None:
    """Addresses of float32 numbers, the output's to be filled."""
    if _library().secateur_run_layer(prepared, data, residual, output, torch.get_num_threads()):
        raise SecateurError("There is not enough memory for a sparse layer; use a smaller batch.")


def add_margins(margins: Margins, data: int, output: int) -> None:
    _library().secateur_add_margins(margins, data, output, torch.get_num_threads())


def run_depthwise(depthwise: Depthwise, data: int, residual: int | None, output: int) -> None:
    if _library().secateur_run_depthwise(depthwise, data, residual, output, torch.get_num_threads()):
        raise SecateurError("There is not enough memory for a depthwise layer; use a smaller batch.")


def run_block(block: DepthwiseBlock, data: int, residual: int | None, output: int) -> None:
    if _library().secateur_run_block(block, data, residual, output, torch.get_num_threads()):
        raise SecateurError("There is not enough memory for a block of layers; use a smaller batch.")


def take_largest(pooling: Pooling, data: int, output: int) -> None:
    if _library().secateur_take_largest(pooling, data, output, torch.get_num_threads()):
        raise SecateurError("There is not enough memory for a pooling layer; use a smaller batch.")


@cache
def _library() -> ctypes.CDLL:
    # Another file for tests: one that watches its memory, for example.
    path = Path(os.environ.get("SECATEUR_KERNELS") or Path(__file__).with_name("kernels.so"))
    if not path.is_file():
        raise UsageError("the kernels were not compiled; install a C++ compiler, then secateur once more")
    try:
        library = ctypes.CDLL(str(path))
        version = library.secateur_kernels_version
        version.restype = c_int64
        if version() != _VERSION:
            raise UsageError("the kernels are those of another version; install secateur once more")
    except (OSError, AttributeError) as error:
        raise UsageError(f"the kernels cannot be loaded ({error}); install secateur once more") from error
    library.secateur_run_layer.argtypes = [POINTER(Prepared), c_void_p, c_void_p, c_void_p, c_int64]
    library.secateur_run_layer.restype = c_int64
    library.secateur_add_margins.argtypes = [POINTER(Margins), c_void_p, c_void_p, c_int64]
    library.secateur_add_margins.restype = None
    library.secateur_run_depthwise.argtypes = [POINTER(Depthwise), c_void_p, c_void_p, c_void_p, c_int64]
    library.secateur_run_depthwise.restype = c_int64
    library.secateur_run_block.argtypes = [POINTER(DepthwiseBlock), c_void_p, c_void_p, c_void_p, c_int64]
    library.secateur_run_block.restype = c_int64
    library.secateur_take_largest.argtypes = [POINTER(Pooling), c_void_p, c_void_p, c_int64]
    library.secateur_take_largest.restype = c_int64
    return library
