"""What dropout multiplies with, of the numbers that torch's ``bernoulli_`` would draw, in a third of its time."""

import functools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

_BITS = 53  # of a random number that `bernoulli_` compares with the chance, as a fraction of 2^53


def dropout_factors_(factors: Tensor, chance: float, generator: torch.Generator, words: Tensor | None = None) -> Tensor:
    """Fill a tensor with 0 at a chance, else with what makes up for it: ``bernoulli_(1 - chance).div_(1 - chance)``."""
    # A chance of 1 draws nothing, as in `nn.Dropout`. 1 - chance is computed anew as torch does: it is not the `keep`
    # that a user gave, which was subtracted from 1 before. `words` saves making a tensor of integers of that shape.
    # Torch draws in the order in which elements lie in memory, or not, as it was built: it says so itself.
    if chance == 1:
        return factors.zero_()
    is_known = factors.is_cpu and factors.dtype in _KNOWN and factors.is_contiguous()
    if is_known and torch_compares_53_bits(factors.dtype):
        return _compared(factors, 1 - chance, generator, words)
    return factors.bernoulli_(1 - chance, generator=generator).div_(1 - chance)


_KNOWN: dict[torch.dtype, Any] = {torch.float32: np.float32, torch.float64: np.float64}


def _compared(factors: Tensor, keep: float, generator: torch.Generator, words: Tensor | None = None) -> Tensor:
    # The integers are drawn without a branch for each, which `bernoulli_` has and no processor can foresee; numpy's
    # calls cost a third of torch's.
    words = torch.empty(factors.shape, dtype=torch.int64) if words is None else words
    numbers, number = words.random_(-(2**63), None, generator=generator).numpy(), _KNOWN[factors.dtype]
    np.bitwise_and(numbers, np.int64(2**_BITS - 1), out=numbers)
    kept = np.less(numbers, np.int64(math.ceil(keep * 2**_BITS)))
    np.multiply(kept, number(1) / number(keep), out=factors.numpy())
    return factors


@functools.cache
def torch_compares_53_bits(dtype: torch.dtype) -> bool:
    """Tell whether this build of torch draws as `dropout_factors_` does; another may use a library for it."""
    for keep in (0.5, 1 - (1 - 0.8), 0.1):
        mine, its = (torch.Generator().manual_seed(0) for _ in range(2))
        factors = _compared(torch.empty(999, dtype=dtype), keep, mine)
        wanted = torch.empty(999, dtype=dtype).bernoulli_(keep, generator=its).div_(keep)
        if not torch.equal(factors, wanted) or not torch.equal(mine.get_state(), its.get_state()):
            return False
    return True
