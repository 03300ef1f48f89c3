"""Names and typos in them: what is meant, what is refused, and in which words."""

from __future__ import annotations

import pytest

from secateur.base.errors import UsageError
from secateur.base.names import did_you_mean, nearest, require_known, require_one_of

SCOPES = ("layer", "global")


def test_the_nearest_word_is_the_one_with_the_fewest_differences() -> None:
    assert nearest("chanels", ["channel", "channels", "kernels"]) == "channels"
    assert nearest("amount", SCOPES) is None
    assert nearest("evaldata", ["eval_data"], similarity=0.9) == "eval_data"
    assert nearest("my_data", ["eval_data"], similarity=0.9) is None


def test_a_sentence_ends_with_what_was_meant_or_else_with_what_to_do() -> None:
    assert did_you_mean("lyaer", SCOPES, "check the spelling.") == "did you mean 'layer'?"
    assert did_you_mean("amount", SCOPES, "check the spelling.") == "check the spelling."
    assert did_you_mean("amount", (), "check the spelling.") == "check the spelling."


@pytest.mark.parametrize("known", [SCOPES, dict.fromkeys(SCOPES, 1)])
def test_a_word_that_is_not_among_the_known_ones_is_refused_with_all_of_them(known: tuple[str, ...]) -> None:
    require_one_of("scope", "layer", known)
    with pytest.raises(UsageError) as error:
        require_one_of("scope", "lyaer", known, ", or leave it out")
    assert str(error.value) == (
        "There is no scope 'lyaer'; choose one of layer, global, or leave it out. Did you mean 'layer'?"
    )


@pytest.mark.parametrize("word", [None, 3, ["layer"]])
def test_what_is_no_word_at_all_is_refused_in_the_same_words(word: object) -> None:
    with pytest.raises(UsageError) as error:
        require_one_of("scope", word, dict.fromkeys(SCOPES, 1))
    assert str(error.value).startswith(f"There is no scope {word!r}; choose one of layer, global.")


def test_a_pattern_may_name_a_parameter_a_module_that_holds_it_or_several() -> None:
    names = ["block.0.conv.weight", "block.1.conv.weight", "head.weight"]
    require_known("keep", ["block", "block.*.conv", "head.weight"], names)
    with pytest.raises(UsageError, match=r"^keep names 'haed', but .*; did you mean 'head'\?$"):
        require_known("keep", ["haed"], names)
    with pytest.raises(UsageError, match=r"parameters are called, for example, \['block.0.conv.weight'"):
        require_known("keep", ["classifier"], names)
