"""Masks of dropout with the numbers of torch's ``bernoulli_``, in a third of its time."""

import functools
import math

import torch
from torch import Tensor

_BITS = 53  # of a random number that `bernoulli_` compares with the chance, as a fraction of 2^53


def keep_mask_(mask: Tensor, chance: float, generator: torch.Generator) -> Tensor:
    """Fill a tensor with 1 at the given chance, else 0: ``mask.bernoulli_(chance, generator=generator)``."""
    if mask.is_cpu and mask.dtype.is_floating_point and torch_compares_53_bits(mask.dtype):
        return _compared(mask, chance, generator)
    return mask.bernoulli_(chance, generator=generator)


def _compared(mask: Tensor, chance: float, generator: torch.Generator) -> Tensor:
    # The integers are drawn without a branch for each, which `bernoulli_` has and no processor can foresee.
    words = torch.empty(mask.shape, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    return mask.copy_(words.bitwise_and_(2**_BITS - 1) < math.ceil(chance * 2**_BITS))


@functools.cache
def torch_compares_53_bits(dtype: torch.dtype) -> bool:
    """Tell whether this build of torch draws as `keep_mask_` does; another may use a library for it."""
    for chance in (0.5, 1 - (1 - 0.8), 0.1):
        mine, its = (torch.Generator().manual_seed(0) for _ in range(2))
        masks = (
            _compared(torch.empty(999, dtype=dtype), chance, mine),
            torch.empty(999, dtype=dtype).bernoulli_(chance, generator=its),
        )
        if not torch.equal(*masks) or not torch.equal(mine.get_state(), its.get_state()):
            return False
    return True
