"""`Blend`: two activations mixed, so that one can give way to the other step by step."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lit_gelu.surgery.changes import forget_hooks, make_all, revert_all, share_hooks
from lit_gelu.surgery.errors import SwapError
from lit_gelu.surgery.mechanisms import fused_paths


class Blend(nn.Module):
    """Two activations of one input, mixed: ``(1 - t) * old(x) + t * new(x)``."""

    # ``t`` is the buffer ``progress``: a compiled graph stays valid while it changes, and a checkpoint holds it. With
    # ``t = 0`` the output is that of ``old``, unless ``new`` is infinite or NaN there.

    progress: Tensor

    def __init__(self, old: nn.Module, new: nn.Module) -> None:
        super().__init__()
        self.old = old
        self.new = new
        self.register_buffer("progress", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the mixture, in the shape and dtype of the input."""
        share = self.progress.to(inputs.dtype)
        old: Tensor = self.old(_own(inputs, self.old))
        new: Tensor = self.new(_own(inputs, self.new))
        return (1 - share) * old + share * new


class Annealing:
    """The sites of a swap while they are blends."""

    # Made right after the swap was applied, it puts a `Blend` of the old and the new activation at each site; hooks,
    # train/eval flag and device carry over, and fused paths of torch, which know no blends, are off meanwhile. `finish`
    # leaves the new activations there, as the swap itself would have.

    def __init__(self, model: nn.Module, places: Sequence[tuple[tuple[str, ...], nn.Module, nn.Module]]) -> None:
        # places: all names of a site, what stood there before, and what stands there now
        self.model = model
        self._places = [(names, self._blend(old, new)) for names, old, new in places]
        for names, blend in self._places:
            self._put(names, blend)
        self._fused_paths = fused_paths(model, self._places)
        make_all(self._fused_paths)

    @property
    def names(self) -> tuple[str, ...]:
        """All fully qualified names of the blends."""
        return tuple(name for names, _ in self._places for name in names)

    def old_parameters(self) -> list[str]:
        """Return the names of the parameters that go at the end."""
        return [f"{names[0]}.old.{name}" for names, blend in self._places for name, _ in blend.old.named_parameters()]

    @property
    def progress(self) -> float:
        """The share of the new activations now."""
        return float(self._places[0][1].progress) if self._places else 1.0

    def set_progress(self, progress: float) -> None:
        """Set the share of the new activations, from 0 to 1."""
        for _, blend in self._places:
            blend.progress.fill_(progress)

    def finish(self) -> None:
        """Put the new activations, as plain modules, where the blends are, if no site has been given another module."""
        for names, blend in self._places:
            if self.model.get_submodule(names[0]) is not blend:
                raise SwapError(f"{names[0]!r} was given another module while it was annealed.")
        for names, blend in self._places:
            for child in (blend.old, blend.new):
                share_hooks(blend, child)
            blend.new.train(blend.training)
            self._put(names, blend.new)
        revert_all(self._fused_paths)

    def _blend(self, old: nn.Module, new: nn.Module) -> Blend:
        """Return the blend of two modules of one site."""
        blend = Blend(old, new)
        reference = next((t for t in (*new.parameters(), *self.model.parameters())), None)
        if reference is not None:  # a module that is resumed in float64 has its buffers in it, too
            dtype = torch.float64 if reference.dtype == torch.float64 else None
            blend.progress = blend.progress.to(reference.device, dtype)
        blend.train(new.training)
        share_hooks(new, blend)
        for child in (old, new):  # a hook of the site sees the blend's input and output, once
            forget_hooks(child)
        return blend

    def _put(self, names: tuple[str, ...], module: nn.Module) -> None:
        """Set a module under every name of a site."""
        for name in names:
            parent, _, child = name.rpartition(".")
            setattr(self.model.get_submodule(parent), child, module)


def blends(model: nn.Module) -> dict[str, Blend]:
    """Return the blends of a model by fully qualified name."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Blend)}


def _own(inputs: Tensor, module: nn.Module) -> Tensor:
    """Return an input that a module may overwrite, if it does."""
    return inputs.clone() if getattr(module, "inplace", False) else inputs
