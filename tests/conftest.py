"""What every test shares: one thread, and a reason beside every skip."""

import os

import pytest
import torch

# Small nets are 10 to 40 times slower with two threads that contend for two cores.
torch.set_num_threads(1)


def pytest_collection_modifyitems(items):
    """Skip, with the reason, what needs data or a device that is not here."""
    reasons = {
        "realdata": None if os.environ.get("LIT_GELU_DATA") else "LIT_GELU_DATA names no folder with the paper's data",
        "gpu": None if torch.cuda.is_available() else "no CUDA device",
    }
    for item in items:
        for marker, reason in reasons.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))
