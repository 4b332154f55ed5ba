"""Parameters that come and go with a swap: in which group of which optimizer, at what learning rate, as scheduled."""

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lit_gelu.errors import CheckpointError, UnsupportedRunError
from lit_gelu.surgery.substitution import weights_beside

Scheduler = Any  # Lightning takes anything with step(), state_dict() and optimizer
# Lists with one entry for each group, in torch's schedulers.
_PER_GROUP = ("base_lrs", "_last_lr", "max_lrs", "min_lrs", "lr_lambdas", "base_momentums", "max_momentums")


def resize_scheduler(scheduler: Scheduler, sources: Sequence[int]) -> None:
    """Fit a scheduler to an optimizer's new groups: group ``i`` is scheduled like the former group ``sources[i]``."""
    for inner in getattr(scheduler, "_schedulers", ()):
        resize_scheduler(inner, sources)
    for name in _PER_GROUP:
        values = vars(scheduler).get(name)
        if isinstance(values, list) and len(values) > max(sources):
            setattr(scheduler, name, [copy.copy(values[source]) for source in sources])


GroupRecord = dict[str, Any]


@dataclass
class ParameterGroups:
    """The parameter groups of a run's optimizers, and the schedulers that step through them."""

    model: nn.Module  # the model whose parameters they hold
    optimizers: Sequence[Optimizer]
    schedulers: Sequence[Scheduler]
    # For every optimizer and group the group whose options it was given: itself, if it was there at the start.
    likes: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.likes = [list(range(len(optimizer.param_groups))) for optimizer in self.optimizers]

    def check(self, places: Iterable[Sequence[str]] = ()) -> None:
        """Refuse what cannot take new groups, and modules whose neighbouring weights are in several optimizers."""
        held = self._places()
        foreign = held.keys() - {id(parameter) for parameter in self.model.parameters()}
        unknown = [scheduler for scheduler in self.schedulers if not isinstance(scheduler, LRScheduler)]
        obstacles = {
            "the module has no optimizer that could train them": not held,
            "LBFGS keeps its first parameters for ever": any(isinstance(each, LBFGS) for each in self.optimizers),
            "an optimizer also holds parameters that are not the module's, which a checkpoint could not name": foreign,
            "a scheduler is no torch.optim.lr_scheduler.LRScheduler, whose groups are known": unknown,
        }
        reasons = [reason for reason, holds in obstacles.items() if holds]
        if reasons:
            raise UnsupportedRunError(
                f"ActivationSwap brings new parameters, and {'; '.join(reasons)}. Change configure_optimizers, or call "
                "lit_gelu.surgery.swap before the Trainer gets the model."
            )
        for names in places:
            self._home(names, held)

    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Put new parameters in groups of their own, with the options of the neighbouring weights but no decay."""
        # Where none of that part's weights (`weights_beside`) is in an optimizer, the new parameters are in none; a
        # parameter that an optimizer has already stays there.
        held = self._places()
        missing = {id(parameter): parameter for parameter in parameters if id(parameter) not in held}
        names: dict[int, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        new: dict[tuple[int, int], list[nn.Parameter]] = {}
        for key, parameter in missing.items():
            home = self._home([name.rpartition(".")[0] for name in names[key]], held, missing.keys())
            if home is not None:
                new.setdefault(home, []).append(parameter)
            if home is None or not parameter.requires_grad:
                rank_zero_warn(
                    f"ActivationSwap: {names[key][0]}, a new parameter, is not trained while those beside it are not."
                )
        self._note_groups_of_others()
        for (number, like), added in new.items():
            optimizer = self.optimizers[number]
            group = _options(optimizer.param_groups[like])
            if "weight_decay" in group:
                group["weight_decay"] = 0.0
            is_named = "param_names" in optimizer.param_groups[0]
            group["params"] = [(names[id(p)][0], p) for p in added] if is_named else added
            optimizer.add_param_group(group)
            self.likes[number].append(like)
            for scheduler in self._schedulers_of(optimizer):
                resize_scheduler(scheduler, [*range(len(optimizer.param_groups) - 1), like])

    def drop(self, parameters: Iterable[nn.Parameter]) -> None:
        """Take parameters out of the optimizers, with their state. A group stays, even if it becomes empty."""
        gone = {id(parameter) for parameter in parameters}
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                kept = [p for p in group["params"] if id(p) not in gone]
                if "param_names" in group:
                    names = dict(zip(map(id, group["params"]), group["param_names"], strict=True))
                    group["param_names"] = [names[id(parameter)] for parameter in kept]
                group["params"] = kept
            for parameter in [p for p in optimizer.state if id(p) in gone]:
                del optimizer.state[parameter]

    def record(self) -> list[list[GroupRecord]]:
        """Return what is in each optimizer's groups: ``{"names": [...], "like": the group whose options it has}``."""
        self._note_groups_of_others()
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        return [
            [
                {"names": [names.get(id(parameter), "") for parameter in group["params"]], "like": like}
                for group, like in zip(optimizer.param_groups, likes, strict=True)
            ]
            for optimizer, likes in zip(self.optimizers, self.likes, strict=True)
        ]

    def rebuild(self, recorded: list[list[GroupRecord]]) -> None:
        """Give the optimizers the groups that a checkpoint was saved with; options come with the optimizer's state."""
        if len(recorded) != len(self.optimizers):
            raise CheckpointError(
                f"The checkpoint has {len(recorded)} optimizers, and the module {len(self.optimizers)}."
            )
        parameters = dict(self.model.named_parameters())
        _check_same(parameters, self.optimizers, recorded)
        for number, (optimizer, groups) in enumerate(zip(self.optimizers, recorded, strict=True)):
            present = optimizer.param_groups
            sources = []  # the present groups whose options recorded ones take; group 0 for those that others had added
            for source in range(len(groups)):
                while source >= len(present):
                    source = int(groups[source]["like"]) if groups[source]["like"] != source else 0
                sources.append(source)
            rebuilt = [
                present[index] if index < len(present) else _options(present[source])
                for index, source in enumerate(sources)
            ]
            named = "param_names" in present[0]
            for group, record in zip(rebuilt, groups, strict=True):
                group["params"] = [parameters[name] for name in record["names"]]
                if named:
                    group["param_names"] = list(record["names"])
            present[:] = rebuilt
            self.likes[number] = [record["like"] for record in groups]
            for scheduler in self._schedulers_of(optimizer):
                resize_scheduler(scheduler, sources)

    def _note_groups_of_others(self) -> None:
        """Take groups that others have added since, such as the module in a hook, for groups like themselves."""
        for optimizer, likes in zip(self.optimizers, self.likes, strict=True):
            likes += range(len(likes), len(optimizer.param_groups))

    def _places(self) -> dict[int, list[tuple[int, int]]]:
        """Return where every parameter is: numbers of optimizer and group, by the parameter's identity."""
        places: dict[int, list[tuple[int, int]]] = {}
        for number, optimizer in enumerate(self.optimizers):
            for index, group in enumerate(optimizer.param_groups):
                for parameter in group["params"]:
                    places.setdefault(id(parameter), []).append((number, index))
        return places

    def _home(
        self, names: Sequence[str], held: dict[int, list[tuple[int, int]]], new: Collection[int] = ()
    ) -> tuple[int, int] | None:
        """Return the place of the weights beside a module, by all its names; ``None`` if no optimizer has any."""
        places: list[tuple[int, int]] = []
        for name in names:
            weights = [weight for weight in weights_beside(self.model, name, new) if id(weight) in held]
            nearest = next((weight for weight in weights if weight.dim() > 1), weights[0] if weights else None)
            places += [] if nearest is None else held[id(nearest)]
        if len({number for number, _ in places}) > 1:
            raise UnsupportedRunError(
                f"ActivationSwap cannot tell which optimizer is to train the new parameters of {names[0]}: the "
                "neighbouring weights are in several. Let one of them have these weights, or give another activation."
            )
        return places[0] if places else None

    def _schedulers_of(self, optimizer: Optimizer) -> list[Scheduler]:
        return [scheduler for scheduler in self.schedulers if scheduler.optimizer is optimizer]


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {key: copy.deepcopy(value) for key, value in group.items() if key not in {"params", "param_names"}}


def _check_same(
    parameters: dict[str, nn.Parameter], optimizers: Sequence[Optimizer], recorded: list[list[GroupRecord]]
) -> None:
    """Refuse a record that would leave a parameter out, or put one where the module's optimizers did not have it."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    every = {name for groups in recorded for record in groups for name in record["names"]}
    for number, (optimizer, groups) in enumerate(zip(optimizers, recorded, strict=True)):
        held = {names.get(id(p), "?") for group in optimizer.param_groups for p in group["params"]}
        first = groups[: len(optimizer.param_groups)]  # others may have been added later
        at_start = {name for index, record in enumerate(first) if record["like"] == index for name in record["names"]}
        different = sorted((held - every) | (at_start - held) | (every - parameters.keys()))
        if different:
            raise CheckpointError(
                f"Only one of optimizer {number} and that of the checkpoint has {', '.join(different)}. Use the "
                "configure_optimizers that the checkpoint was trained with."
            )
