"""What a fork server imports before it forks; a process that is forked from it has it."""

import atexit
import contextlib
import gc
import importlib

from lit_gelu.garbage import collection_paused

with collection_paused():
    for name in ("lit_gelu.paper.pools.job_answer", "lit_gelu.data", "lit_gelu.tasks"):
        with contextlib.suppress(Exception):  # a process that lacks it tries again, and says what is wrong
            importlib.import_module(name)
gc.freeze()  # what is here stays: processes need not look through it, which would also copy it
atexit.register(gc.unfreeze)  # else libraries complain, when the server ends, of what they have not seen deleted
