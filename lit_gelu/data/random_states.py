"""The states of the random number generators that a training run draws from, as plain data."""

import random
from typing import Any

import numpy as np
import torch

RandomStates = dict[str, Any]


def random_states() -> RandomStates:
    """Return the states of the global generators of Python, NumPy and PyTorch (CPU, and the present CUDA device).

    Returns:
        Numbers, strings, lists and tensors, which ``torch.load(weights_only=True)`` reads.

    Example:
        >>> before = random_states()
        >>> drawn = random.random()
        >>> set_random_states(before)
        >>> random.random() == drawn
        True
    """
    version, numbers, gauss = random.getstate()
    numpy_state = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator is what is meant
    assert isinstance(numpy_state, dict)  # noqa: S101 - of legacy=False
    states: RandomStates = {
        "python": [version, list(numbers), gauss],
        "numpy": numpy_state | {"state": numpy_state["state"] | {"key": numpy_state["state"]["key"].tolist()}},
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: RandomStates) -> None:
    """Set the global generators.

    Args:
        states: What `random_states` returned, here or on another machine; a CUDA state is left out where there is none.
    """
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    numpy_state = states["numpy"]
    key = np.array(numpy_state["state"]["key"], dtype=np.uint32)
    np.random.set_state(numpy_state | {"state": numpy_state["state"] | {"key": key}})  # noqa: NPY002
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())
