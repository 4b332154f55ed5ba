"""A process from which those that make runs are forked: it imports their libraries once, beside what this one does."""

import multiprocessing
import sys
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext

from lit_gelu.paper.pools.child_variables import interrupts_ignored, threads_limited, variables_set

_PRELOADED = "lit_gelu.paper.pools.preloaded"
_SAFE_PATH = "PYTHONSAFEPATH"  # else files of the current folder would be imported in place of libraries


def fork_server(threads: int) -> ForkServerContext | None:
    """Start the server of this process, if it has none; return what starts processes, ``None`` if these cannot be so.

    Args:
        threads: How many threads libraries use that are told so when they are loaded.

    Returns:
        A context whose processes begin with the libraries loaded, and with the server's variables; ``None`` where
        libraries may have begun threads that a forked process lacks, as Apple's do.
    """
    if not sys.platform.startswith("linux"):
        return None
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_PRELOADED])
    with interrupts_ignored(), variables_set(threads_limited(threads) | {_SAFE_PATH: "1"}):
        forkserver.ensure_running()
    return context
