"""A process from which those that make runs are forked: it imports their libraries once, beside what this one does."""

import multiprocessing
import sys
from typing import TYPE_CHECKING

from lit_gelu.paper.pools.child_variables import interrupts_ignored, threads_limited, variables_set

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext  # Windows has none

_PRELOADED = "lit_gelu.paper.pools.preloaded"
_SAFE_PATH = "PYTHONSAFEPATH"  # else files of the current folder would be imported in place of libraries
_SAFE_SINCE = (3, 11, 1)  # before, any user of the machine could have the server run code: CVE-2022-42919


def fork_server(threads: int) -> "ForkServerContext | None":
    """Start the server of this process, unless it has one, and return what starts processes by it.

    Args:
        threads: How many threads libraries use that are told so when they are loaded.

    Returns:
        A context whose processes begin with the libraries loaded, and with the server's variables; ``None`` where there
        is none, as libraries may have begun threads that a forked process lacks (Apple's do), and where none can start.
    """
    if not sys.platform.startswith("linux") or sys.version_info < _SAFE_SINCE:
        return None
    from multiprocessing import forkserver  # Unix has it

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOADED])
    with interrupts_ignored(), variables_set(threads_limited(threads) | {_SAFE_PATH: "1"}):
        try:
            forkserver.ensure_running()
        except OSError:  # TMPDIR cannot be written to, or is too long for a socket's name
            return None
    return context
