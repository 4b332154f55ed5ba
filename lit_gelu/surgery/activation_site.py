"""`ActivationSite`: one place of a model where an activation is computed."""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from lit_gelu.activations import ActivationSpec
from lit_gelu.surgery.observation import Call

Role = Literal["activation", "gate"]
Kind = Literal["module", "attribute", "call"]


@dataclass(frozen=True)
class ActivationCall:
    """One expression that calls an activation.

    Args:
        name: The site's name, with ``#0``, ``#1``, ... if it is called from several places.
        caller: The fully qualified name of the module whose method makes the call.
        where: File and line.
        count: How often the sample reached it, in one pass.
    """

    name: str
    caller: str
    where: str
    count: int
    _seen: Call = field(repr=False, compare=False)

    @property
    def inputs(self) -> tuple[torch.Size, ...]:
        """The inputs' shapes, without repetition."""
        return tuple(self._seen.inputs)

    @property
    def training_only(self) -> bool:
        """Whether only the pass in training mode reached it."""
        return self._seen.training_only

    def __str__(self) -> str:
        only = ", in training alone" if self.training_only else ""
        return f"{self.name} at {self.where}, {self.count} time{'s' * (self.count != 1)}{only}"


@dataclass(frozen=True)
class ActivationSite:
    """A place of a model where an activation is computed.

    Args:
        name: Of a module, its fully qualified name; empty for the model itself. Of a function that a module holds as
            an attribute, the attribute's. Of a call of a function or of a tensor's method, the calling module's name, a
            colon, the activation's name, and, if the module has several such calls, ``#0``, ``#1``, ... in the order in
            which they are first reached: ``"blocks.0.mlp:gelu"``, ``":relu#1"``.
        module: The activation module; for an attribute or a call, the module that holds it or makes it.
        spec: Its canonical spec.
        role: ``"gate"`` for sigmoid, hard sigmoid, tanh and softmax, which mostly gate another value; such a site is
            swapped only if it is named in full, by its class or by its activation.
        aliases: The other fully qualified names, if the module stands in several places.
        kind: ``"module"``, ``"attribute"`` or ``"call"``.
        calls: From where it is called and how often; ``None`` if no ``input_sample`` was run, empty if the sample does
            not reach it. Each call of a module that is called from several places may be swapped by itself, by the
            name in it: ``"layer1.0.relu#1"``.
        call: For the module that `lit_gelu.surgery.swap` put in the place of a call, the name that the call had.
    """

    name: str
    module: nn.Module
    spec: ActivationSpec
    role: Role
    aliases: tuple[str, ...] = ()
    kind: Kind = "module"
    calls: tuple[ActivationCall, ...] | None = None
    call: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """All fully qualified names."""
        return (self.name, *self.aliases)
