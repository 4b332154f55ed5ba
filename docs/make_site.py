"""Build the site into ``build/website/site``: ``make site``, or ``python docs/make_site.py``. Nothing is fetched."""

import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # also where this is not the script, as in MkDocs's plugins

import torch
from website.building import SITE, build_site


def main() -> None:
    """Build it, and say where it is."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    torch.set_num_threads(1)
    build_site()
    pages = len(list(SITE.rglob("*.html")))
    print(f"wrote {SITE.relative_to(Path.cwd()) if SITE.is_relative_to(Path.cwd()) else SITE}, {pages} pages")


if __name__ == "__main__":
    main()
