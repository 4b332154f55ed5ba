"""The identity at an activation's place."""

from torch import nn


class Identity(nn.Identity):
    """``f(x) = x``, standing where an activation stood.

    Networks use ``torch.nn.Identity`` for many things (an absent projection, a dropped layer), so `lit_gelu.surgery`
    lists only this class as an activation site.

    Example:
        >>> import torch
        >>> Identity()(torch.tensor([-1.0, 2.0]))
        tensor([-1.,  2.])
    """
