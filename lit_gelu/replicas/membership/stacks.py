"""The parameters and buffers of all members in one tensor each, of which the members' own are parts."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from lit_gelu.replicas.errors import MembersDifferError, NotReplicableError

Names = Mapping[str, Tensor]


class Stacks:
    """Stacks ``[replicas, ...]`` under the members' own names, in a tree of modules; the members hold parts of them.

    Where an activation has a parameter that others have not, the stack holds the replicas that have it.

    Args:
        modules: The members.

    `parameters` and `buffers` are the stacks by name.

    Raises:
        MembersDifferError: If members have tensors of different shape, dtype or use of gradients under one name.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = list(modules)
        self.tree = nn.Module()
        self.rows: dict[str, list[int]] = {}
        self._names: dict[int, dict[int, str]] = {}  # by member, of parameters by identity
        kept = {name for module in self.modules for name in module.state_dict()}
        for name, members in _by_name(self.modules, nn.Module.named_parameters).items():
            stack = nn.Parameter(self._stacked(name, members), members[min(members)].requires_grad)
            _branch(self.tree, name).register_parameter(name.rpartition(".")[2], stack)
        for name, members in _by_name(self.modules, nn.Module.named_buffers).items():
            buffer = self._stacked(name, members)
            _branch(self.tree, name).register_buffer(name.rpartition(".")[2], buffer, persistent=name in kept)
        self._stacked_parameters = [dict(module.named_parameters()) for module in self.modules]
        self.attach()

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The stacks that have a gradient."""
        return {name: stack for name, stack in self.parameters.items() if stack.requires_grad}

    def slice(self, name: str, replica: int) -> Tensor:
        """Return a replica's part of a stack of parameters; gradients flow into the stack."""
        return self.tree.get_parameter(name)[self.rows[name].index(replica)]

    def slices(self, tensors: Mapping[str, Tensor | None]) -> list[dict[str, Tensor]]:
        """Return each replica's parts of stacks, or of what belongs to them; of what is ``None``, nothing."""
        own: list[dict[str, Tensor]] = [{} for _ in self.modules]
        for name, tensor in tensors.items():
            if tensor is not None:
                for replica, part in zip(self.rows[name], tensor.unbind(0), strict=True):
                    own[replica][name] = part
        return own

    def names_in(self, replica: int, part: nn.Module) -> dict[str, str]:
        """Return under which name a stack is of each parameter of a member's part: a member's first one, of several."""
        own = dict(part.named_parameters())
        if own and replica not in self._names:
            named = self.modules[replica].named_parameters()
            self._names[replica] = {id(parameter): name for name, parameter in named}
        return {name: self._names[replica][id(parameter)] for name, parameter in own.items()}

    def attach(self, moved: Callable[[Tensor], Tensor] | None = None) -> None:
        """Let the members hold the stacks' parts: again, whenever stacks were moved or others took their place.

        What members were given since they were stacked, such as another activation's parameters, stays their own; it
        is moved as the stacks were.
        """
        # Held here, because to look for them takes as long as a small layer, several times a step.
        self.parameters: dict[str, nn.Parameter] = dict(self.tree.named_parameters())
        self.buffers: dict[str, Tensor] = dict(self.tree.named_buffers())
        tensors = {**self.parameters, **self.buffers}
        parts = self.slices({name: tensor.detach() for name, tensor in tensors.items()})
        for module, own, stacked in zip(self.modules, parts, self._stacked_parameters, strict=True):
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                is_given = isinstance(tensor, nn.Parameter) and tensor is not stacked.get(name)
                if name in own and not is_given:
                    tensor.data = own[name]
                elif moved is not None:
                    tensor.data = moved(tensor.data)
        self._places = [place for module in self.modules for place in _places_of_buffers(module)]

    def take_back(self) -> None:
        """Copy what members have assigned to buffers into the stacks, and let them hold their parts again.

        Raises:
            NotReplicableError: If it is of another size or type.
        """
        for held, key, part, name in self._places:
            found = held.get(key)
            if found is part:
                continue
            if found is None or found.shape != part.shape or found.dtype != part.dtype:
                kinds = ["nothing" if t is None else f"{list(t.shape)} {t.dtype}" for t in (part, found)]
                raise NotReplicableError(
                    f"A member's step assigned {kinds[1]} to the buffer {name!r}, of which the group holds {kinds[0]} "
                    "for every member. Assign tensors of one size and type, or train the module alone."
                )
            part.copy_(found.detach().clone())  # a clone, because it may be a view of the part
            held[key] = part

    def _stacked(self, name: str, members: Mapping[int, Tensor]) -> Tensor:
        kinds = {(tuple(t.shape), t.dtype, t.requires_grad) for t in members.values()}
        if len(kinds) > 1:
            shown = "; ".join(
                f"{list(shape)} {dtype} requires_grad={grad}" for shape, dtype, grad in sorted(kinds, key=str)
            )
            raise MembersDifferError(
                f"The members differ in {name!r}: {shown}. A group holds one tensor for all: give members of one size, "
                "and a group of its own for every other size."
            )
        self.rows[name] = sorted(members)
        return torch.stack([members[replica].detach() for replica in self.rows[name]])


def _by_name(
    modules: Sequence[nn.Module], named: Callable[[nn.Module], Iterable[tuple[str, Tensor]]]
) -> dict[str, dict[int, Tensor]]:
    """Return for every name the tensors of the members that have it."""
    found: dict[str, dict[int, Tensor]] = {}
    for replica, module in enumerate(modules):
        for name, tensor in named(module):
            found.setdefault(name, {})[replica] = tensor
    return found


def _places_of_buffers(module: nn.Module) -> Iterable[tuple[dict[str, Tensor | None], str, Tensor, str]]:
    """Return where a module has its buffers: the dictionary, the key, the tensor and its name."""
    for path, part in module.named_modules():
        for key, tensor in part._buffers.items():
            if tensor is not None:
                yield part._buffers, key, tensor, ".".join(filter(None, (path, key)))


def _branch(tree: nn.Module, name: str) -> nn.Module:
    """Return the module of a tree that holds a tensor of that name, made if it is not there."""
    for part in name.split(".")[:-1]:
        if part not in tree._modules:
            tree.add_module(part, nn.Module())
        tree = tree.get_submodule(part)
    return tree
