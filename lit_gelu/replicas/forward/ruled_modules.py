"""`Ruled`: what stands where the members have an activation, in the one module that computes all of them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from lit_gelu.replicas.errors import NotReplicableError
from lit_gelu.replicas.forward.hidden import NO_VMAP
from lit_gelu.replicas.forward.rules import ActivationRule, RuleUnderVmap
from lit_gelu.replicas.forward.under_vmap import mapped_call

_PLAIN = frozenset({bool, int, float, str, type(None)})


class Ruled(nn.Module):
    """Computes by a rule what the members' activations do.

    It says that it is of the activations' class, where they have one, and its parameters and buffers are theirs, where
    all have the same ones: a penalty in a training step may look for it and read them. What else they hold is read
    where it is the same number or text in all. Other reads are errors, in a step.
    """

    rule: ActivationRule
    differing: dict[str, frozenset[str]]  # names of tensors that not all members have, and of layers, by where they are

    @property  # type: ignore[misc] # which torch's own modules have as an attribute
    def __class__(self) -> type:
        """The activations' class, for ``isinstance``: nothing of it is inherited, as no member's state is here."""
        kinds = {type(module) for module in vars(self)["rule"].modules} if "rule" in vars(self) else set()
        return kinds.pop() if len(kinds) == 1 else Ruled

    def forward(self, inputs: Tensor) -> Tensor:
        """Apply the rule to all replicas."""
        outputs: Tensor = mapped_call(RuleUnderVmap, inputs, self.rule)
        return outputs

    def train(self, mode: bool = True) -> "Ruled":
        """Set the mode of the members' activations, too."""
        for module in self.rule.modules:
            module.train(mode)
        self.training = mode
        return self

    def __getattr__(self, name: str) -> Any:
        """Read what is the same in all members' activations; refuse what is not."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            rule = vars(self)["rule"]
            found = [getattr(module, name) for module in rule.modules if hasattr(module, name)]
            if not found:
                raise
        is_plain = len(found) == len(rule.modules) and all(type(value) in _PLAIN for value in found)
        if is_plain and len({(type(value), value) for value in found}) == 1:
            return found[0]
        raise NotReplicableError(_reads(name, rule.path))


class _OfOthers(dict[str, Any]):
    """Tensors or layers that not all members have: to go through them, or to read one, is an error."""

    def __init__(self, names: frozenset[str], path: str) -> None:
        super().__init__()
        self.names, self.path = names, path

    def _refuse(self, *_: Any) -> Any:
        raise NotReplicableError(_reads(", ".join(sorted(self.names)), self.path))

    __iter__ = __len__ = __reversed__ = keys = values = items = copy = _refuse

    def __contains__(self, name: object) -> bool:
        return name in self.names and self._refuse()


def become_ruled(module: nn.Module, rule: ActivationRule) -> None:
    """Let a rule stand for an activation wherever the template holds it, also in lists and under several names."""
    of_members, own = [_tensors_of(one) for one in rule.modules], _tensors_of(module)
    layers = frozenset(name for one in rule.modules for name, _ in one.named_children())
    module.__class__ = Ruled
    vars(module).clear()
    nn.Module.__init__(module)
    differing = {"_modules": layers} if layers else {}
    for held, tensors in own.items():  # also those of layers in it, whose names have dots here as in the members
        kinds = {frozenset(of_member[held]) for of_member in of_members}
        if len(kinds) == 1:
            vars(module)[held].update(tensors)
        else:
            differing[held] = frozenset(name for kind in kinds for name in kind)
    vars(module).update(rule=rule, differing=differing)


def _tensors_of(module: nn.Module) -> dict[str, dict[str, Tensor]]:
    """Return parameters and buffers by name, as a module holds them."""
    return {"_parameters": dict(module.named_parameters()), "_buffers": dict(module.named_buffers())}


@contextmanager
def without_own_parts(modules: Sequence[Ruled]) -> Iterator[None]:
    """Refuse code that reads parts of activations which the members do not have in common."""
    apart = [(vars(module), held) for module in modules for held in module.differing]
    before = [attributes[held] for attributes, held in apart]
    for attributes, held in apart:
        attributes[held] = _OfOthers(attributes["differing"][held], attributes["rule"].path)
    try:
        yield
    finally:
        for (attributes, held), parts in zip(apart, before, strict=True):
            attributes[held] = parts


def _reads(names: str, path: str) -> str:
    return (
        f"The training step reads {names} of the activation {path!r}, which members of a group have for themselves: "
        f"all are computed by the code of one. {NO_VMAP}"
    )
