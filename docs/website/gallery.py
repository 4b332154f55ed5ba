"""The gallery: a page for each activation of the registry, written from its row, and an index with small plots."""

import html
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from _family import infos

from lit_gelu.activations import ActivationInfo, ActivationRegistry
from website import gallery_facts
from website.gallery_plots import PlotFiles, draw
from website.places import GALLERY
from website.source_tree import SourceTree

USE = """\
import lit_gelu as lg

activation = lg.activations.create("{name}")
print(lg.activations.info("{name}"))
"""
LETTERS = {"Phi": "Φ", "alpha": "α", "beta": "β", "mu": "μ", "sigma": "σ", "pi": "π", "sqrt": "√"}  # noqa: RUF001
ARXIV = re.compile(r"arXiv (\d{4}\.\d{4,5})")


def names() -> dict[str, ActivationInfo]:
    """Return what is known of each activation, by the name under which the registry builds it."""
    registry = ActivationRegistry()
    by_spec = {str(info.spec): info for info in infos()}
    found: dict[str, ActivationInfo] = {}
    for name in sorted(registry.list_activations(), key=lambda name: (str(registry.resolve(name)) != name, name)):
        info = by_spec.pop(str(registry.resolve(name)), None)
        if info is not None:
            found[name] = info
    return dict(sorted(found.items()))


def reference_links(text: str) -> str:
    """Return a source with its numbers of arXiv as links.

    Example:
        >>> reference_links("Misra 2019 (arXiv 1908.08681)")
        'Misra 2019 ([arXiv 1908.08681](https://arxiv.org/abs/1908.08681))'
    """
    return ARXIV.sub(r"[\g<0>](https://arxiv.org/abs/\1)", text)


def typeset(formula: str) -> str:
    """Return a formula in plain text as HTML, with Greek letters, roots and powers as they are written by hand.

    Example:
        >>> typeset("x Phi(x)^2 / sqrt(pi)")
        'x Φ(x)<sup>2</sup> / √(π)'
    """
    text = html.escape(formula, quote=False)
    text = re.sub(r"\b(" + "|".join(LETTERS) + r")\b", lambda match: LETTERS[match[1]], text)
    text = re.sub(r"\b(alpha|beta)_(\w)", lambda match: f"{LETTERS[match[1]]}<sub>{match[2]}</sub>", text)
    return re.sub(r"\^(\w+)", r"<sup>\1</sup>", text)


def page(name: str, info: ActivationInfo, plots: PlotFiles) -> str:
    """Return the page of an activation.

    Args:
        name: The name under which the registry builds it.
        info: What is known of it.
        plots: Its plots.

    Returns:
        Markdown.
    """
    formula = typeset(info.formula if info.halves else f"f(x) = {info.formula}")
    parts = [
        f"# {name}\n",
        f'<p class="formula">{formula}</p>\n',
        plots.as_markdown("../"),
        "## Use it\n",
        f"```python\n{USE.format(name=name)}```\n",
        *gallery_facts.sections(name, info),
    ]
    if info.reference:
        parts += ["## Source\n", reference_links(info.reference) + "\n"]
    return "\n".join(parts)


def _card(name: str, info: ActivationInfo, plots: PlotFiles) -> str:
    """Return the link to an activation's page, with its small plot."""
    shown = f"{plots.small_as_markdown('../')}`{name}`<br><small>{typeset(info.formula)}</small>"
    return f"[{shown}]({name}.md)\n{{ .card }}\n"


def index(entries: Iterable[tuple[str, ActivationInfo, PlotFiles]]) -> str:
    """Return the gallery's first page: a small plot of each activation, which leads to its page."""
    entries = list(entries)
    cards = [_card(name, info, plots) for name, info, plots in entries]
    return (
        f"# Activations\n\nThe {len(entries)} activations of the registry. Each has a page with its formula, its "
        "plots, its gains, its cost, its accuracy and the ONNX operators it becomes. The thick curve is f, the thin "
        "one f'.\n\n"
        '<div class="gallery" markdown>\n\n' + "\n".join(cards) + "\n</div>\n"
    )


def with_pages(text: str) -> str:
    """Return the page of tables with each activation in a first column leading to its page, and not to its function.

    Example:
        >>> with_pages("| `gelu(approximate='tanh')` | x |")
        "| [`gelu(approximate='tanh')`](gallery/gelu_tanh.md) | x |"
    """
    names_by_spec = {str(info.spec): name for name, info in names().items()}

    def link(match: re.Match[str]) -> str:
        name = names_by_spec.get(match[1])
        return f"| [`{match[1]}`]({GALLERY}/{name}.md) |" if name else match[0]

    return re.sub(r"^\| \[?`([^`|]+)`(?:\]\[[^\]]*\])? \|", link, text, flags=re.MULTILINE)


def write(tree: SourceTree) -> list[str]:
    """Write the gallery, and return its pages, the index first."""
    entries = [(name, info, draw(name, info, tree.folder)) for name, info in names().items()]
    for name, info, plots in entries:
        tree.write(PurePosixPath(GALLERY, f"{name}.md"), tree.link_names(page(name, info, plots)))
    tree.write(PurePosixPath(GALLERY, "index.md"), index(entries))
    return [f"{GALLERY}/index.md", *(f"{GALLERY}/{name}.md" for name, *_ in entries)]
