"""What the registry knows of one activation: what its author stated, and what is computed from its values."""

from dataclasses import dataclass

from lit_gelu.activations.naming.entry import ActivationFacts
from lit_gelu.activations.naming.spec import ActivationSpec
from lit_gelu.display import Displayed, HtmlTable, readable


@dataclass(frozen=True)
class ActivationShape:
    """The facts computed from ``f``, ``f'`` and ``f''`` in float64 by `lit_gelu.activations.analysis.shape.shape_of`.

    Args:
        range: Infimum and supremum of ``f``.
        monotone: Whether ``f' >= 0`` everywhere.
        convex: Whether ``f'' >= 0`` everywhere and no jump of ``f'`` is negative.
        lipschitz: ``sup |f'|``.
        derivative_at_zero: ``f'(0)``.
        minimum: ``(x, f(x))`` of the lowest point, ``None`` if there is no single one.
        inflections: Where ``f''`` changes sign.
        left_asymptote: ``(slope, offset)`` of the straight line that ``f`` approaches on the left, ``None`` if there is
            none.
        right_asymptote: The same on the right.
    """

    range: tuple[float, float] | None = None
    monotone: bool | None = None
    convex: bool | None = None
    lipschitz: float | None = None
    derivative_at_zero: float | None = None
    minimum: tuple[float, float] | None = None
    inflections: tuple[float, ...] = ()
    left_asymptote: tuple[float, float] | None = None
    right_asymptote: tuple[float, float] | None = None


@dataclass(frozen=True)
class ActivationGains:
    """The gains of an activation for standard normal pre-activations; see `lit_gelu.activations.gain`.

    Args:
        forward: ``1 / sqrt(E f^2)``.
        variance: ``1 / sqrt(E f^2 - (E f)^2)``.
        backward: ``1 / sqrt(E f'^2)``.
    """

    forward: float
    variance: float
    backward: float


@dataclass(frozen=True, kw_only=True, repr=False)
class ActivationInfo(Displayed, ActivationFacts, ActivationShape):
    """Everything the registry knows of one activation with given arguments.

    It has the fields of `ActivationFacts`, stated by the author, and of `ActivationShape`, computed; the computed ones
    are ``None`` for what is not elementwise, is another function for every channel, or not finite on both sides of 0.

    Args:
        spec: The activation, in canonical form.
        gains: For standard normal pre-activations; ``None`` for what is not elementwise, is constant, or has moments
            that do not exist in float64.
        aliases: Its other names.
        registered_by: The distribution, plugin or module that registered it.

    Example:
        >>> import lit_gelu as lg
        >>> info = lg.activations.info("gelu")
        >>> info.smoothness, round(info.lipschitz, 6), [round(value, 6) for value in info.minimum]
        (inf, 1.128904, [-0.751792, -0.169971])
    """

    spec: ActivationSpec
    gains: ActivationGains | None = None
    aliases: tuple[str, ...] = ()
    registered_by: str = ""

    def _summary(self) -> str:
        lowest = "" if self.minimum is None else f", minimum {self.minimum[1]:.6g} at {self.minimum[0]:.6g}"
        steepest = "" if self.lipschitz is None else f", |f'| <= {self.lipschitz:.6g}"
        return f"{self.spec}: {self.formula or 'no formula stated'}{lowest}{steepest}"

    def _html_table(self) -> HtmlTable:
        gains = None if self.gains is None else {name: f"{gain:.7g}" for name, gain in vars(self.gains).items()}
        facts = {name: value for name, value in vars(self).items() if name != "spec"} | {"gains": gains}
        rows = [(name.replace("_", " "), readable(value)) for name, value in facts.items()]
        return HtmlTable(("", "value"), rows, str(self.spec))
