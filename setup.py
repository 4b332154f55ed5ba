"""The text of the package's page: README.md with absolute links, since relative ones lead nowhere there.

All else stands in pyproject.toml.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent
_OUTSIDE = r"(?!\w+:|//|#)"  # an address, or a place on the same page


def absolute(text: str, repository: str, tag: str) -> str:
    """Return Markdown whose relative links and pictures lead into a repository, to the files of a tag.

    Args:
        text: The Markdown. Its fenced code stays as it is.
        repository: The repository's address, as GitHub has it.
        tag: The tag of the release.
    """
    parts = re.split(r"(^```.*?^```)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _linked(part, repository, tag) for part in parts)


def _linked(text: str, repository: str, tag: str) -> str:
    raw, page = f"{repository}/raw/{tag}/", f"{repository}/blob/{tag}/"
    text = re.sub(rf"(!\[[^\]]*\]\(){_OUTSIDE}(?=[^)\s])", rf"\g<1>{raw}", text)
    text = re.sub(rf"(\]\(){_OUTSIDE}(?=[^)\s])", rf"\g<1>{page}", text)
    text = re.sub(rf'(\b(?:src|srcset)="){_OUTSIDE}', rf"\g<1>{raw}", text)
    return re.sub(rf'(\bhref="){_OUTSIDE}', rf"\g<1>{page}", text)


def description() -> str:
    """Return README.md with absolute links, to the tag of pyproject.toml's version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return absolute(text, project["urls"]["Repository"], f"v{project['version']}")


if __name__ == "__main__":
    from setuptools import setup

    setup(long_description=description(), long_description_content_type="text/markdown")
