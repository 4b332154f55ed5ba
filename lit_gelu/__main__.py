"""``python -m lit_gelu``: the command ``lit-gelu``."""

import sys

from lit_gelu.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
