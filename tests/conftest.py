"""What every test shares: one thread, the environment as it was, and a reason beside every skip."""

import os
import signal

import pytest
import torch

# Small nets are 10 to 40 times slower with two threads that contend for two cores.
torch.set_num_threads(1)


# A shell lets what it starts in the background ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def environment_as_it_was():
    """Undo what a Trainer leaves in the environment: with LOCAL_RANK set, the next one would wait for other ranks."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def pytest_collection_modifyitems(items):
    """Skip, with the reason, what needs data or a device that is not here; put first what forks."""
    items.sort(key=lambda item: item.get_closest_marker("forks") is None)
    reasons = {
        "realdata": None if os.environ.get("LIT_GELU_DATA") else "LIT_GELU_DATA names no folder with the paper's data",
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
