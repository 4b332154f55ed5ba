"""What an activation becomes in an ONNX file: recipes as text, which `lit_gelu.export` reads.

A recipe is written as the graph it stands for. ``Mul(x, Sigmoid(Mul(x, 1.702)))`` is three nodes: ``Mul``, ``Sigmoid``,
``Mul`` (inner nodes first). ``x`` is the activation's input; other lower-case names are the activation's arguments with
the values they have at export; numbers and names in capitals are constants, ``a * b`` of them one constant; keywords
are node attributes; ``name = ...;`` gives an intermediate result a name. Operators are standard ones unless they are
written ``microsoft.NAME``, which is the domain ``com.microsoft`` that only onnxruntime knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Lowering = Literal["native", "primitives", "contrib"]
LOWERINGS: tuple[Lowering, ...] = ("native", "primitives", "contrib")

Arguments = Mapping[str, object]


@dataclass(frozen=True)
class OnnxRecipes:
    """The recipes of one activation (of one case of it, where its arguments decide).

    Args:
        native: Recipe in standard operators, with the activation's own operator.
        primitives: Recipe in basic standard operators.
        contrib: Recipe with onnxruntime's fused operators.
        accurate: Recipe in standard operators without cancellation.
    """

    native: str | None = None
    primitives: str | None = None
    contrib: str | None = None
    accurate: str | None = None

    def applies(self, lowering: Lowering) -> bool:
        """Return whether a lowering has a recipe of its own here; ``native`` always has one to take.

        Args:
            lowering: Which lowering.

        Returns:
            Whether choosing it means something for this activation.
        """
        return lowering == "native" or getattr(self, lowering) is not None

    def recipe(self, lowering: Lowering) -> tuple[Lowering, str]:
        """Return the recipe that a lowering takes, and whose it is.

        Args:
            lowering: Which lowering is wanted.

        Returns:
            The lowering that provides the recipe, and the recipe.

        Raises:
            LookupError: If there is none at all.

        Example:
            >>> OnnxRecipes(primitives="Mul(x, Sigmoid(x))").recipe("native")
            ('primitives', 'Mul(x, Sigmoid(x))')
        """
        order: tuple[Lowering, ...] = (lowering, "native", "primitives")
        for name in order:
            recipe: str | None = getattr(self, name)
            if recipe is not None:
                return name, recipe
        raise LookupError("there is no recipe")


@dataclass(frozen=True)
class OnnxCases:
    """The recipes of an activation whose arguments decide which operators it becomes.

    Args:
        recipes: Recipes by case, such as ``"gelu(approximate='tanh')"``.
        case: From the arguments with the values they have now to the case, which may be one of another activation that
            is the same function; ``None`` leaves it to torch's exporter.
    """

    recipes: Mapping[str, OnnxRecipes]
    case: Callable[[Arguments], str | None]


def numbers(argument: object) -> list[float]:
    """Return the numbers that an argument holds.

    Args:
        argument: A number, or an array of one number a channel.

    Returns:
        One number or more.

    Example:
        >>> numbers(2.0)
        [2.0]
    """
    values: list[Any] = argument.ravel().tolist() if hasattr(argument, "ravel") else [argument]
    return [float(value) for value in values]
