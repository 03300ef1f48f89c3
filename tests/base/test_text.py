"""Numbers and names as people read them."""

from __future__ import annotations

import pytest

from secateur.base.text import aligned, byte_text, count_text, metric_text, milliseconds, short_count, some_of


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (short_count(0), "0"),
        (short_count(999), "999"),
        (short_count(999.6), "1 k"),
        (short_count(10_240_000), "10.2 M"),
        (short_count(5e12), "5 T"),
        (byte_text(12), "12 B"),
        (byte_text(2_220), "2.22 kB"),
        (count_text(1, "group"), "1 group"),
        (count_text(1_200, "group"), "1,200 groups"),
        (milliseconds(0.00123), "1.23 ms"),
        (milliseconds(2.5), "2.5 s"),
        (metric_text("accuracy", 0.8764), "87.6%"),
        (metric_text("perplexity", 12.345678), "12.35"),
        (some_of(["a", "b", "c"]), "a, b, c"),
        (some_of(["a", "b", "c", "d", "e"]), "a, b, c +2 more"),
        (some_of(["a: x", "b: y", "c: z"], 2, between="; "), "a: x; b: y +1 more"),
    ],
)
def test_a_person_reads(found: str, text: str) -> None:
    assert found == text


def test_columns_are_aligned_and_lines_end_with_text() -> None:
    assert aligned([("name", "size"), ("a", "10"), ("bcdef", "")], right=[1]) == ["name   size", "a        10", "bcdef"]
