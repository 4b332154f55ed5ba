"""Links and lists of a page, changed for the site; code is left alone."""

from pathlib import PurePosixPath

import pytest
from website.markdown import prose_lines, relative, relinked, with_room_for_lists

CODE = "```python\nx = '[a](b.md)'\n- no list\n```"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[a](b.md)", "[a](X/b.md)"),
        ("[a](b.md#c) and ![d](e.png)", "[a](X/b.md#c) and ![d](X/e.png)"),
        ("[a](#b)", "[a](#b)"),
        ("[a](https://b.c/d.md)", "[a](https://b.c/d.md)"),
        (CODE, CODE),
    ],
)
def test_links_are_changed_outside_code(text, wanted):
    assert relinked(text, "X/{}".format) == wanted


def test_a_longer_fence_holds_a_shorter_one():
    text = "````\n```\n[a](b)\n```\n````\nend"
    assert [line for line, prose in prose_lines(text) if prose] == ["end"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("a\n- b\n- c", "a\n\n- b\n- c"),
        ("a\n1. b\n   more\n2. c", "a\n\n1. b\n   more\n2. c"),
        ("a\n\n- b\n\n  more\n- c", "a\n\n- b\n\n  more\n- c"),
        ("-1 is no item\n-2 neither", "-1 is no item\n-2 neither"),
        (CODE, CODE),
    ],
)
def test_a_list_has_an_empty_line_in_front(text, wanted):
    assert with_room_for_lists(text) == wanted


def test_the_way_between_two_pages():
    assert relative(PurePosixPath("images/a.png"), PurePosixPath("guides/b.md")) == "../images/a.png"
