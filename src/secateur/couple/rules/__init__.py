"""Op rules: for each ATen operator, how the coordinates of its inputs and outputs hang together.

A rule is a function of the coupling and a call. To add one, write it in the file of its family and name its operators
in `@rule(…)`. An operator without a rule pins everything that it touches.
"""

from __future__ import annotations

from secateur.couple.rules import (  # noqa: F401 each names its rules in the registry
    attention,
    choosing,
    convolution,
    elementwise,
    indexing,
    matmul,
    norm,
    pooling,
    recurrent,
    reduction,
    shape,
)
