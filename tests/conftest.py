"""What every test shares: one thread, its own random numbers, the environment as it was, a reason beside every skip."""

import gc
import importlib
import logging
import os
import random
import re
import signal
import zlib
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

gc.disable()  # until all tests are imported

_ROWS = 5  # of a test's table, in `make test`

# Small nets are 10 to 40 times slower with two threads that contend for two cores.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of child processes

# Without a language of its own argparse looks for files of translations at every option.
os.environ["LANGUAGE"] = "C"

# A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# The same examples on every machine and in every order, and as much time for each as it takes.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")


def pytest_configure(config):
    """Hide CUDA devices from all tests but those marked ``gpu``, which `pytest -m gpu` runs: a Trainer would take one.

    What is tested on a CPU is tested there on every machine, and processes that are forked cannot use CUDA.
    """
    if not re.search(r"(?<!not )\bgpu\b", config.option.markexpr):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish():
    """Leave out of garbage collection what imports made, and collect less often: it takes a twelfth of the time."""
    gc.enable()
    gc.freeze()
    gc.set_threshold(20000, 20, 10)


def _seed(name):
    """Let what is drawn next from the global generators depend on a name alone."""
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator is meant
    torch.manual_seed(seed)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Seed what a test file draws while it is imported: by its name, not by the files before it."""
    if isinstance(collector, pytest.Module):
        _seed(collector.nodeid)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Seed a fixture that tests share by its own name: whichever test comes first, it is the same."""
    if fixturedef.scope == "function":
        return (yield)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    _seed(f"{fixturedef.baseid}::{fixturedef.argname}[{getattr(request, 'param_index', 0)}]")
    try:
        return (yield)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        torch.set_rng_state(before[2])


@pytest.fixture(autouse=True)
def numbers_of_its_own(request):
    """Seed every test by its name: it draws the same alone, in any order, and on either worker."""
    _seed(request.node.nodeid)


@pytest.fixture(autouse=True)
def environment_as_it_was():
    """Undo what a Trainer leaves in the environment: with LOCAL_RANK set, the next one would wait for other ranks."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol():
    """Undo what a command that a test or a shared fixture runs does to loggers and threads: others rely on these."""
    entries = [logging.root, *logging.root.manager.loggerDict.values()]
    loggers = [logger for logger in entries if isinstance(logger, logging.Logger)]
    levels = [logger.level for logger in loggers]
    disabled = logging.root.manager.disable
    try:
        return (yield)
    finally:
        if torch.get_num_threads() != 1:  # of Lightning's strategies of several processes
            torch.set_num_threads(1)
        for logger, level in zip(loggers, levels, strict=True):
            if logger.level != level:  # each setting goes through all loggers: 68 ms for 660 of them
                logger.setLevel(level)
        if logging.root.manager.disable != disabled:
            logging.disable(disabled)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Skip, with the reason, what needs data or a device that is not here; put first what forks; thin out tables."""
    # It sets the levels of its loggers, which tests put back, and lets them propagate because pytest listens by now.
    importlib.import_module("lightning.pytorch")
    items.sort(key=lambda item: item.get_closest_marker("forks") is None)
    reasons = {
        "realdata": None if os.environ.get("LIT_GELU_DATA") else "LIT_GELU_DATA names no folder with the paper's data",
        "gpu": None if torch.cuda.is_available() else "no CUDA device: `pytest -m gpu` looks for one",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
    tables = defaultdict(list)
    for item in items:
        if not any(item.get_closest_marker(marker) for marker in ("every", "full")):
            tables[item.nodeid.partition("[")[0]].append(item)
    for rows in tables.values():
        for item in sorted(rows, key=lambda item: zlib.crc32(item.nodeid.encode()))[_ROWS:]:
            item.add_marker(pytest.mark.full)
