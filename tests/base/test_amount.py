"""How much to prune, as people write it."""

from __future__ import annotations

import numpy as np
import pytest

import secateur
from secateur.base.amount import parse_amount, parse_share


@pytest.mark.parametrize("amount", [0.9, "90%", "0.9", " 90 % ", np.float32(0.9)])
def test_amounts(amount: float | str) -> None:
    assert parse_amount(amount) == pytest.approx(0.9)


@pytest.mark.parametrize(
    "amount", [-0.1, 1, 1.0, 90, "100%", "fifty", "", "%", float("nan"), float("inf"), "nan", None, True, [0.5]]
)
def test_amounts_that_make_no_sense_are_refused(amount) -> None:
    with pytest.raises(secateur.UsageError, match="The amount to prune"):
        parse_amount(amount)


def test_a_share_may_exceed_the_whole_and_needs_its_sign() -> None:
    assert parse_share("150 %", "finetune") == 1.5
    with pytest.raises(secateur.UsageError, match=r"finetune is '1\.5'; give a number, or a percentage such as"):
        parse_share("1.5", "finetune")
