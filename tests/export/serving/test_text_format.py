"""Protobuf's text format: what is written, protobuf's own parser reads back."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from triton_proto import parsed

from lit_gelu.export.serving.config import Word, to_text


@given(st.text(st.characters(blacklist_categories=["Cs"])))
def test_any_text(text):
    assert parsed(to_text({"name": text})).name == text


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_any_list_of_numbers(numbers):
    assert list(parsed(to_text({"input": [{"dims": numbers}]})).input[0].dims) == numbers


def test_messages_words_truths_and_repeated_messages():
    text = to_text({
        "input": [{"name": "a", "optional": True}, {"name": "b", "data_type": Word("TYPE_BF16"), "optional": False}],
        "dynamic_batching": {},
        "parameters": [{"key": "k", "value": {"string_value": "-1"}}],
    })
    config = parsed(text)
    assert [(i.name, i.optional, i.data_type) for i in config.input] == [("a", True, 0), ("b", False, 14)]
    assert config.HasField("dynamic_batching")
    assert config.parameters["k"].string_value == "-1"


@pytest.mark.parametrize("text", ['nmae: "a"', "input { dtype: TYPE_FP32 }", "input { data_type: FP32 }", "name: 3"])
def test_the_parser_of_these_tests_refuses_what_triton_does_not_know(text):
    with pytest.raises(text_format.ParseError):
        parsed(text)
