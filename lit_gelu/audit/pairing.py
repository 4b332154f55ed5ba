"""Which activation of one artefact stands for which of another: by the names of modules, else by order."""

from collections.abc import Sequence

from lit_gelu.audit.artefacts import Activation, Artefact
from lit_gelu.display import count_of
from lit_gelu.errors import AuditError
from lit_gelu.export.parity.foreign import module_of

Pair = tuple[Activation, Activation]


def paired(reference: Artefact, candidate: Artefact) -> list[Pair]:
    """Return the activations of two artefacts in pairs, call by call.

    Raises:
        AuditError: If neither names nor numbers of calls tell which belong together.
    """
    first, second = reference.activations, candidate.activations
    pairs = _by_name(first, second)
    if pairs is None and len(first) == len(second):
        pairs = list(zip(first, second, strict=True))
    if pairs is None:
        raise AuditError(
            f"The activations of {reference.label} and {candidate.label} cannot be matched: the one calls "
            f"{_listed(first)}, the other {_listed(second)}. Give the parts of both that belong together."
        )
    return pairs


def _by_name(first: Sequence[Activation], second: Sequence[Activation]) -> list[Pair] | None:
    """Pair by the modules' names, of which one artefact's may have more in front; ``None`` if they do not tell."""
    modules = [each.scope for each in first]
    groups: dict[str, list[Activation]] = {}
    for each in second:
        groups.setdefault(module_of(each.scope, modules), []).append(each)
    if any(modules.count(name) != len(group) for name, group in groups.items()) or groups.keys() != {*modules}:
        return None
    waiting = {name: iter(group) for name, group in groups.items()}
    return [(each, next(waiting[name])) for each, name in zip(first, modules, strict=True)]


def _listed(activations: Sequence[Activation]) -> str:
    names = [each.spec or each.implemented for each in activations]
    counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
    return f"{count_of(len(names), 'activation')} ({counted})" if names else "none that is known"
