"""Which sites a swap is for: by name, by class, or by the activation that stands there now."""

import fnmatch
import glob
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from lit_gelu import activations
from lit_gelu.activations import ActivationRegistry, ActivationSpec
from lit_gelu.activations.importing import import_object
from lit_gelu.surgery.activation_site import ActivationSite
from lit_gelu.surgery.errors import SwapError


class Selector:
    """Decides which sites a swap is for."""

    def matches(self, site: ActivationSite, registry: ActivationRegistry) -> bool:
        """Say whether a site is selected.

        Args:
            site: The site.
            registry: Where names are looked up.

        Returns:
            Whether it is.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class NameSelector(Selector):
    """Selects by a shell-style pattern over fully qualified names; a gate only if the pattern is its name in full.

    Args:
        pattern: Such as ``"encoder.*"``; ``*`` also matches dots and what follows a colon.
    """

    pattern: str

    def matches(self, site: ActivationSite, registry: ActivationRegistry) -> bool:  # noqa: ARG002, D102
        names = (*site.names, site.call) if site.call else site.names
        if site.role == "gate":
            return self.pattern in {*names, *(glob.escape(name) for name in names)}
        return any(fnmatch.fnmatchcase(name, self.pattern) for name in names)

    def __str__(self) -> str:
        return repr(self.pattern)


def exactly(name: str) -> NameSelector:
    """Select the site of a name, whatever characters are in it: names out of files are no patterns, and no classes.

    Args:
        name: Its fully qualified name.

    Returns:
        The selector.

    Example:
        >>> str(exactly("class:torch.nn.ReLU")), str(exactly("blocks[0]"))
        ("'class:torch.nn.ReLU'", "'blocks[[]0]'")
    """
    return NameSelector(glob.escape(name))


@dataclass(frozen=True)
class ClassSelector(Selector):
    """Selects by class, subclasses included.

    Args:
        type: The module class.
    """

    type: type[nn.Module]

    def matches(self, site: ActivationSite, registry: ActivationRegistry) -> bool:  # noqa: ARG002, D102
        return site.kind == "module" and isinstance(site.module, self.type)

    def __str__(self) -> str:
        return f"class {self.type.__name__}"


@dataclass(frozen=True, eq=False)  # a spec may be a mapping, which has no hash
class ActivationSelector(Selector):
    """Selects by the activation that stands there now.

    Args:
        activation: Any spec. Its name must be the site's, and every argument that it gives the site's value;
            arguments that it does not give may have any.
    """

    activation: Any

    def matches(self, site: ActivationSite, registry: ActivationRegistry) -> bool:  # noqa: D102
        return self.matches_spec(site.spec, registry)

    def matches_spec(self, spec: ActivationSpec, registry: ActivationRegistry) -> bool:
        """Say whether an activation is selected.

        Args:
            spec: Its canonical spec.
            registry: Where names are looked up.

        Returns:
            Whether it is.
        """
        wanted = registry.resolve(self.activation)
        if wanted.name != spec.name or wanted.opaque != spec.opaque:
            return False
        if wanted.opaque:
            return True
        parameters = registry.entry(spec.name).parameters
        present = {name: parameter.default for name, parameter in parameters.items()} | spec.arguments
        required = _given_arguments(self.activation, wanted.name, registry) | wanted.arguments
        return all(present.get(name, inspect.Parameter.empty) == value for name, value in required.items())

    def __str__(self) -> str:
        return f"activation {self.activation}"


def _given_arguments(activation: Any, name: str, registry: ActivationRegistry) -> dict[str, Any]:
    """Return the arguments as written, among them those that equal their defaults, which `resolve` drops."""
    if isinstance(activation, str) and "." not in activation.partition("(")[0]:
        activation = ActivationSpec.parse(activation)
    if isinstance(activation, Mapping) and "name" in activation:
        activation = ActivationSpec(
            activation["name"], tuple((key, value) for key, value in activation.items() if key != "name")
        )
    if isinstance(activation, ActivationSpec) and registry.entry(activation.name).name == name:
        return activation.arguments
    return {}


def by_activation(activation: Any) -> Selector:
    """Select the sites where a given activation stands now.

    Args:
        activation: Any spec, such as ``"relu"`` or ``"gelu(approximate='tanh')"``. ``"gelu"`` selects all its forms,
            ``"gelu(approximate='none')"`` the exact one alone.

    Returns:
        A target for `swap`.

    Example:
        >>> from lit_gelu import surgery
        >>> model = nn.Sequential(nn.ReLU(), nn.GELU())
        >>> print(surgery.swap(model, {by_activation("relu"): "silu"}))
        0: relu -> silu
    """
    return ActivationSelector(activation)


def selector_of(target: Any) -> Selector:
    """Turn a target into a selector.

    Args:
        target: A pattern over names, ``"class:dotted.path"``, ``"activation:spec"``, a module class, or a selector.

    Returns:
        The selector.

    Raises:
        SwapError: If it is none of these.

    Example:
        >>> str(selector_of("class:torch.nn.ReLU")), str(selector_of("encoder.*"))
        ('class ReLU', "'encoder.*'")
    """
    match target:
        case Selector():
            return target
        case type() if issubclass(target, nn.Module):
            return ClassSelector(target)
        case str() if target.startswith("class:"):
            return selector_of(import_object(target.removeprefix("class:").strip()))
        case str() if target.startswith("activation:"):
            text = target.removeprefix("activation:").strip()
            activations.ActivationSpec.parse(text) if "." not in text.partition("(")[0] else None
            return ActivationSelector(text)
        case str():
            return NameSelector(target)
    raise SwapError(
        f"{target!r} is no target for a swap. Accepted: a pattern over fully qualified names, 'class:dotted.path', "
        "'activation:spec', a torch.nn.Module class, by_activation(spec)."
    )
