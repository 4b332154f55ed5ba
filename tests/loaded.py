"""``make test-loaded``: run a command while busy loops take the processors.

``python tests/loaded.py [--loops N] COMMAND...`` returns the command's exit code. Every loop is in a session of its
own, and so is the command: Linux shares the processors fairly among sessions, as among the programs of several people.
Within one session a command of the lowest priority would get a hundredth of the time.
"""

import argparse
import contextlib
import os
import subprocess
import sys

#: It ends by itself when whoever started it was killed, even before its own first line: it is told who that was.
LOOP = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    sum(range(100_000))"


def main() -> int:
    """Start the loops, run the command, end the loops."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=2, help="how many processes do nothing but use time (default: 2)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to run, with its arguments")
    options = parser.parse_args()
    if not options.command:
        parser.error("give a command")
    with contextlib.ExitStack() as running:
        for _ in range(options.loops):
            loop = subprocess.Popen([sys.executable, "-S", "-c", LOOP, str(os.getpid())], start_new_session=True)
            running.callback(loop.wait)
            running.callback(loop.kill)
        return subprocess.run(options.command, start_new_session=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
