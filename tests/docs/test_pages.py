"""Every page is true: its Python runs as it stands, its commands exist, its links lead somewhere."""

import ast
import importlib
import os
import re
from pathlib import Path

import pytest
from child_processes import run_warm

from lit_gelu.cli.commands import COMMANDS, LIGHTNING_COMMANDS, parser_of

ROOT = Path(__file__).parents[2]
FOLDERS = [".", "docs", "docs/guides", "examples/web", "examples/paper"]
PAGES = {str(path.relative_to(ROOT)): path.read_text() for folder in FOLDERS for path in (ROOT / folder).glob("*.md")}
LINKS = [
    (page, link) for page, text in PAGES.items() for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link
]
# They take five seconds and more: they train, export, or import other libraries. Their imports are always looked at.
FULL = {
    "docs/audit.md", "docs/choose.md", "docs/coming_from.md", "docs/curvature.md", "docs/essentials.md",
    "docs/export.md", "docs/guides/choose_an_activation.md", "docs/guides/export_and_serve.md",
    "docs/guides/many_runs.md", "docs/guides/register_your_own.md", "docs/guides/swap_in_my_model.md",
    "docs/guides/use_kernels.md", "docs/guides/watch_curvature.md", "docs/kernels.md", "docs/names.md",
    "docs/providers.md", "docs/quantization.md", "docs/replicas.md", "docs/report.md", "docs/serving.md",
    "docs/start.md", "docs/swapping.md",
}  # fmt: skip
FILES_OF_THE_README = {"docs/serving.md": "digits.onnx"}  # what a page's Python reads, made as the README makes it


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def anchors(text):
    """Return the anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page):
    for link in [link for owner, link in LINKS if owner == page]:
        name, _, anchor = link.partition("#")
        target = (ROOT / page).parent / name if name else ROOT / page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text()), link


def test_every_page_of_docs_is_linked_from_another():
    linked = {(ROOT / page).parent / link.partition("#")[0] for page, link in LINKS}
    assert {ROOT / page for page in PAGES if page.startswith("docs/")} <= {path.resolve() for path in linked}


def pages_with_python():
    pages = sorted(page for page in PAGES if page != "README.md" and blocks(page, "python"))
    return [pytest.param(page, marks=[pytest.mark.full] * (page in FULL)) for page in pages]


@pytest.mark.parametrize("page", pages_with_python())
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    code = "\n".join(blocks(page, "python"))
    if page in FILES_OF_THE_README:
        preamble = (
            "from lit_gelu.export import export_onnx; from lit_gelu.tasks import MNISTClassifier\n"
            f"export_onnx(MNISTClassifier(), {FILES_OF_THE_README[page]!r})\n"
        )
        code = preamble + code
    script = tmp_path / "page.py"  # a file, as a swap of a call reads the source of what holds it
    script.write_text(code)
    run_warm(script, cwd=tmp_path, env={**os.environ, "LIT_GELU_PLUGINS": "0"})


@pytest.mark.parametrize("page", sorted(FULL))
def test_what_a_page_imports_from_here_exists(page):
    tree = ast.parse("\n".join(blocks(page, "python")))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    for node in imported:
        if node.module.startswith("lit_gelu"):
            module = importlib.import_module(node.module)
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
    assert imported


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_exists(page):
    commands = re.findall(r"^(?:.*; )?lit-gelu (\w+)", "\n".join(blocks(page, "sh")), re.MULTILINE)
    commands += re.findall(r"`lit-gelu (\w+)", PAGES[page])
    assert set(commands) <= COMMANDS.keys()


def calls(text):
    """Return the commands that a text shows, each with its options, LightningCLI's left out."""
    for name, rest in re.findall(r"lit-gelu ((?:[a-z]+ )?[a-z]+)\b([^`\n]*)", text):
        command = name if name in COMMANDS else name.split()[0]
        if command in COMMANDS.keys() - LIGHTNING_COMMANDS:
            yield command, re.findall(r"(?<![\w-])--[a-z][\w-]*", rest.partition("#")[0])


@pytest.mark.parametrize("page", sorted(PAGES.keys() - {"CHANGELOG.md"}))  # which has old spellings too
def test_every_option_of_a_page_exists(page):
    for command, options in calls(PAGES[page]):
        names = parser_of(command)._option_string_actions.keys()
        assert {option.replace("_", "-") for option in options} <= names, command


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_of_a_page_exists(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"`make ([a-z][a-z-]*)", PAGES[page])) <= set(targets)
    assert set(re.findall(r"^make ([a-z][a-z-]*)", "\n".join(blocks(page, "sh")), re.MULTILINE)) <= set(targets)
