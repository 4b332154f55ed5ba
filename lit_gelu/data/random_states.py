"""The states of the random number generators that a training run draws from, as plain data."""

import random
from typing import Any

import numpy as np
import torch

from lit_gelu.data.errors import CorruptDataError

_MERSENNE_NUMBERS = 624  # of NumPy's generator, which reads on behind them if it is told that it is further
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

    Raises:
        CorruptDataError: If it is anything else; the generators stay as they are then.
    """
    check_random_states(states)
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(_numpy_state(states))  # noqa: NPY002 - the global generator is what is meant
    torch.set_rng_state(states["torch"].cpu())
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"].cpu())


def check_random_states(states: object) -> None:
    """Refuse what `set_random_states` cannot set: states come out of checkpoints, which may be damaged.

    Args:
        states: What a checkpoint holds.

    Raises:
        CorruptDataError: If `random_states` did not return it.

    Example:
        >>> check_random_states(random_states())
        >>> check_random_states(random_states() | {"torch": torch.zeros(3, dtype=torch.uint8)})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        lit_gelu.data.errors.CorruptDataError: The random states of the checkpoint are damaged (RuntimeError: ...
    """
    try:
        read: Any = states
        version, numbers, gauss = read["python"]
        random.Random().setstate((version, tuple(numbers), gauss))  # noqa: S311 - as the global one, which is left alone
        np.random.RandomState().set_state(_numpy_state(read))
        torch.Generator().set_state(read["torch"].cpu())
        if "cuda" in read and torch.cuda.is_available():
            torch.Generator("cuda").set_state(read["cuda"].cpu())
    except (AttributeError, IndexError, KeyError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        raise CorruptDataError(
            f"The random states of the checkpoint are damaged ({type(error).__name__}: {error}). Resume "
            "from another checkpoint, or leave ExactResume out."
        ) from error


def _numpy_state(states: RandomStates) -> dict[str, Any]:
    """Return the state for ``numpy.random.set_state``, which takes any place in its numbers unchecked."""
    state = states["numpy"]
    place = state["state"]["pos"]
    if not 0 <= place <= _MERSENNE_NUMBERS:
        raise ValueError(f"NumPy's place is {place}, of {_MERSENNE_NUMBERS} numbers")
    key = np.array(state["state"]["key"], dtype=np.uint32)
    return {**state, "state": {**state["state"], "key": key}}
