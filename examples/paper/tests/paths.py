"""Where the repository's documentation is."""

from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
