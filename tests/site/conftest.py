"""The site's builder lies in docs/website, which no package installs."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs"))
