"""Check the links of the built site: ``make links``, or ``python docs/check_links.py [FOLDER]``.

Prints the addresses of other sites, which are not visited, and fails if a link within the site leads nowhere or a page
loads something from elsewhere.
"""

import argparse
import sys
from pathlib import Path

from website.built_links import check

SITE = Path(__file__).resolve().parents[1] / "build" / "website" / "site"


def main() -> int:
    """Check a folder, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=SITE, help="the built site")
    found = check(parser.parse_args().folder.resolve())
    print("\n".join(found.outside))
    for line in (*found.broken, *found.fetched):
        print(f"broken: {line}", file=sys.stderr)
    print(f"{found.checked} links within the site, {len(found.broken)} broken")
    print(f"{len(found.fetched)} files loaded from outside; {len(found.outside)} addresses of other sites, not visited")
    return 1 if found.broken or found.fetched else 0


if __name__ == "__main__":
    sys.exit(main())
