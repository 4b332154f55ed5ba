"""`ActivationRegistry`: the activations of this package by name, with what is known of them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from lit_gelu.activations.analysis.shape import computed_facts
from lit_gelu.activations.families import ENTRIES
from lit_gelu.activations.naming.entry import ActivationEntry
from lit_gelu.activations.naming.info import ActivationInfo
from lit_gelu.activations.naming.names import Names
from lit_gelu.activations.naming.names import registry_or_default as registry_or_default
from lit_gelu.errors import SpecError

if TYPE_CHECKING:
    from lit_gelu.activations.integrations import Installation


class ActivationRegistry(Names):
    """Names of activations, and what stands behind them.

    A *spec* is any of: a text (``"gelu"``, ``"leaky_relu(negative_slope=0.2)"``), a mapping
    (``{"name": "gelu", "approximate": "tanh"}`` or ``{"class_path": "torch.nn.ELU", "init_args": {"alpha": 0.5}}``), an
    `ActivationSpec`, a module class, a function from tensor to tensor, or a module, which is copied. Every call of
    `create` gives a new module.

    Names are in lower case and are looked up without regard to case. Registries can be pickled and copied, and used
    from several threads.

    Args:
        entries: The rows to start with; by default those of this package.
        entry_points: Whether activations of installed plugins are loaded at the first look-up.

    Example:
        >>> registry = ActivationRegistry()
        >>> registry.create("leaky_relu(negative_slope=0.2)")
        LeakyReLU(negative_slope=0.2)
        >>> @registry.register("cube")
        ... def cube(x, scale=1.0):
        ...     return scale * x**3
        >>> str(registry.spec_of(registry.create("cube(scale=2)")))
        'cube(scale=2)'
    """

    def __init__(self, entries: tuple[ActivationEntry, ...] | None = None, *, entry_points: bool = False) -> None:
        super().__init__(ENTRIES if entries is None else entries, entry_points=entry_points)

    def info(self, spec: Any) -> ActivationInfo:
        """Return what is known of an activation; see `ActivationInfo`.

        Raises:
            SpecError: If it was never registered.

        Example:
            >>> ActivationRegistry().info("hard_swish").kinks
            ((-3.0, -0.5), (3.0, -0.5))
        """
        canonical = self.resolve(spec)
        if canonical.opaque:
            raise SpecError(f"{canonical.name!r} was never registered, so nothing is known of it. Register it first.")
        entry = self.entry(canonical.name)
        facts = entry.facts_for(canonical.arguments)
        presets = [row for row in self.entries() if row.preset == canonical]
        names = [name for row in presets for name in (row.name, *row.aliases) if self.entry(name) is row]
        aliases = () if names and canonical.kwargs else entry.aliases  # which stand for the entry without arguments
        aliases = tuple(name for name in aliases if self.entry(name) is entry)  # another may have taken one since
        return ActivationInfo(
            spec=canonical,
            aliases=(*aliases, *names),
            registered_by=entry.registered_by,
            **vars(facts),
            **computed_facts(canonical, facts, self),
        )

    def install(self, library: str) -> "Installation":
        """Make the names usable in another library's configurations, specs with arguments included.

        Names that the library has too (``"gelu"``) keep its meaning.

        ``"transformers"``: ``hidden_act="gaussian_gelu"`` in a configuration, and what else is looked up in ``ACT2FN``.
        ``"timm"``: ``act_layer="gaussian_gelu"`` in ``timm.create_model``, for models that look their activation up.

        Args:
            library: ``"timm"`` or ``"transformers"``. It is imported now, and only now.

        Returns:
            What undoes it: call its ``uninstall()``, or use it as a context manager. Installing twice is installing
            once.

        Raises:
            ArgumentError: If there is no integration with it.
            MissingExtraError: If it is not installed.
            UnsupportedRunError: If another registry's names are there.
        """
        from lit_gelu.activations.integrations import install

        return install(self, library)


class _DefaultRegistry(ActivationRegistry):
    """One in a process: a copy is itself, and in another process it becomes the one there, with what was added."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _default_with, (tuple(entry for entry in self.entries() if entry not in ENTRIES),)


def _default_with(added: tuple[ActivationEntry, ...]) -> ActivationRegistry:
    """Return this process's default registry, with the rows of another process's that it lacks."""
    for entry in added:
        if entry not in registry.entries():
            registry.add(entry, override=True)
    return registry


registry: ActivationRegistry = _DefaultRegistry(entry_points=True)
Names.default = registry
