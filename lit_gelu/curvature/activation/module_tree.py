"""`ModuleTree`: whether a model still consists of the modules it did."""

import operator
from itertools import chain

from torch import nn


class ModuleTree:
    """Remembers which modules a model consists of.

    Asking again compares the children of every module by their identity, in loops that do not run in Python: it is done
    at every measurement, when nothing of the model is in the caches.

    Args:
        model: The model.

    Example:
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
        >>> tree = ModuleTree(model)
        >>> tree.is_unchanged()
        True
        >>> model[1] = nn.GELU()
        >>> tree.is_unchanged()
        False
    """

    def __init__(self, model: nn.Module) -> None:
        # The modules themselves are kept, so that no other can come to have the identity of one that is gone.
        self._children = [module._modules for module in model.modules()]
        self._counts, self._listed = self._as_they_are()

    def is_unchanged(self) -> bool:
        """Return whether no module was replaced, added, removed or moved since."""
        counts, listed = self._as_they_are()
        return counts == self._counts and all(map(operator.is_, listed, self._listed))

    def _as_they_are(self) -> tuple[list[int], list[nn.Module | None]]:
        """Return how many children each module has, and all children one after the other."""
        return list(map(len, self._children)), list(chain.from_iterable(map(dict.values, self._children)))
