"""The recipes of an activation in ONNX as rows of a table."""

import itertools

from _text import number

from lit_gelu.export.lowering import policy
from lit_gelu.export.lowering.lowering_table import TABLE


def recipe_rows(row: str) -> list[list[str]]:
    """Return a line for each distinct recipe of an activation: where it is taken, its error in strict 16-bit files.

    The recipe of the line above, now in float32, is not repeated.
    """
    places: dict[str, list[tuple[str, str, str]]] = {}
    errors: dict[str, str] = {}
    for cell in itertools.product(policy.TARGETS, policy.DTYPES, policy.POLICIES):
        target = policy.Target(*cell)
        choice = policy.choose(TABLE[row], target)
        places.setdefault(str(choice), []).append((target.runtime, target.dtype, target.policy))
        if target.dtype != "fp32" and target.policy == "strict":
            errors[str(choice)] = number(policy.absolute_error(TABLE[row], choice), 2)
    above = ["", *places]
    return [
        ["`fp32:` the same" if recipe == f"fp32: {last}" else f"`{recipe}`", _where(where), errors.get(recipe, "")]
        for last, (recipe, where) in zip(above, places.items(), strict=False)
    ]


def _where(places: list[tuple[str, str, str]]) -> str:
    """Return cells as text: dtypes and policies that go together are joined."""
    by_target: dict[str, dict[str, list[str]]] = {}
    for target, dtype, wanted in places:
        by_target.setdefault(target, {}).setdefault(dtype, []).append(wanted)
    texts: dict[str, list[str]] = {}
    for target, dtypes in by_target.items():
        full = all(len(dtypes.get(dtype, [])) == len(policy.POLICIES) for dtype in policy.DTYPES)
        parts = [
            dtype if len(wanted) == len(policy.POLICIES) else f"{dtype} {wanted[0]}" for dtype, wanted in dtypes.items()
        ]
        texts.setdefault("all" if full else ", ".join(parts), []).append(target)
    if len(by_target) == len(policy.TARGETS) and len(texts) == 1:
        (text,) = texts
        return "everywhere" if text == "all" else f"everywhere: {text}"
    return "; ".join(f"{', '.join(targets)}: {text}" for text, targets in texts.items())
