"""Messages of bounded length, whatever was given."""

import pytest

from lit_gelu.errors import LitGeluError, message_of, shown

LONG = {
    "text": "x" * 100_000,
    "bytes": b"x" * 100_000,
    "number": 10**100_000,
    "lists": [[[[["x" * 1000] * 100]]]] * 100,
    "mapping": {"a" * 1000: "b" * 1000},
    "object": object(),
}


@pytest.mark.parametrize("name", LONG)
def test_whatever_is_shown_is_short(name):
    assert len(shown(LONG[name])) < 1000


def test_short_values_are_shown_as_they_are():
    for value in ("gelu", 3, [1, 2], {"name": "gelu"}, None, "don't"):
        assert shown(value) == repr(value)


def test_what_holds_itself_is_shown():
    value = []
    value.append(value)
    assert shown(value)


def test_a_message_of_a_key_error_is_no_repr():
    class Missing(LitGeluError, KeyError):
        pass

    assert str(Missing("There is no 'x'.")) == "There is no 'x'."


def test_a_short_message_of_another_library_is_given_whole():
    assert message_of(ValueError("no such file.")) == "no such file"


@pytest.mark.parametrize("name", ["text", "lists", "mapping"])
def test_of_a_long_message_the_middle_is_left_out(name):
    message = message_of(ValueError(f"Invalid version: {LONG[name]}, as the file says"))
    assert len(message) < 2000
    assert message.startswith("Invalid version: ")
    assert message.endswith(", as the file says")


@pytest.mark.parametrize("name", ["deep", "number"])
def test_an_error_that_cannot_be_printed_has_its_class_as_message(name):
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert message_of(KeyError({"deep": deep, "number": 10**100_000}[name])) == "KeyError"
