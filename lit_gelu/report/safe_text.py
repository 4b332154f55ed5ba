"""Text from anywhere, so that it is text in HTML and nothing else."""

import html
import re

_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]")
MOST_CHARACTERS = 2000


def text(content: object) -> str:
    r"""Return text for the inside of an element: no markup, no control characters, none that turn the line around.

    Example:
        >>> text("</script><b>\x00")
        '&lt;/script&gt;&lt;b&gt;�'
    """
    plain = str(content)
    if len(plain) > MOST_CHARACTERS:
        plain = f"{plain[:MOST_CHARACTERS]} … ({len(plain):,} characters)"
    return html.escape(_UNPRINTABLE.sub("\ufffd", plain), quote=True)


def attribute(content: object) -> str:
    """Return text for an attribute in double quotes: as `text`, in one line."""
    return " ".join(text(content).split())
