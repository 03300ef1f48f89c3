"""Numbers and names as people read them."""

from __future__ import annotations

import pytest

from secateur.base.errors import SecateurError, UsageError
from secateur.base.text import (
    aligned,
    byte_text,
    count_text,
    install_hint,
    joined_lines,
    metric_text,
    milliseconds,
    short_count,
    short_name,
    some_of,
)


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
        (short_name("layer.0.conv", 12), "layer.0.conv"),
        (short_name("encoder.layer.11.attention.self.query", 24), "encoder…11…self.query"),
        (short_name("encoder.layer.11.attention.self.query", 16), "encoder…11…query"),
        (short_name("a_name_that_has_no_dots", 12), "a_n…_no_dots"),
        (str(len(short_name("n" * 100_000 + ".x" * 100_000, 10))), "10"),
        (install_hint("int8"), "pip install '.[int8]'"),
        (some_of(["a", "b", "c"]), "a, b, c"),
        (some_of(["a", "b", "c", "d", "e"]), "a, b, c +2 more"),
        (some_of(["a: x", "b: y", "c: z"], 2, between="; "), "a: x; b: y +1 more"),
    ],
)
def test_a_person_reads(found: str, text: str) -> None:
    assert found == text


def test_columns_are_aligned_and_lines_end_with_text() -> None:
    assert aligned([("name", "size"), ("a", "10"), ("bcdef", "")], right=[1]) == ["name   size", "a        10", "bcdef"]


ODD_NAMES = ["\x1b[2J\x07", "\ud800", "a\nb", "\u202etxt.exe", "\x9b31m", "name" * 1_000_000, "two words " * 100_000]


@pytest.mark.parametrize("kind", [SecateurError, UsageError])
def test_a_refusal_fits_on_a_screen_and_prints_safely_whatever_it_names(kind: type[SecateurError]) -> None:
    for name in ODD_NAMES:
        sentence = str(kind(f"There is no layer {name} in the model; leave it out."))
        assert sentence.isprintable()
        assert sentence.startswith("There is no layer ")
        assert sentence.endswith("leave it out.")
        assert len(sentence) < 1500
    whole = f"There is no file {'folder/' * 40}; check the path, and then {'think ' * 100}."
    assert str(kind(whole)) == whole
    assert str(kind()) == ""


def test_lines_keep_to_themselves() -> None:
    lines = joined_lines(["head", *(f"  {name[:20]}" for name in ODD_NAMES)]).split("\n")
    assert len(lines) == 1 + len(ODD_NAMES)
    assert all(line.isprintable() for line in lines)
