"""The gallery has a page for each activation of the registry, with what its row and the records say."""

import re

import pytest
from website import gallery, gallery_facts
from website.gallery_plots import PlotFiles

from lit_gelu import activations


@pytest.fixture(scope="module")
def names():
    return gallery.names()


def test_every_registered_activation_has_one_page(names):
    registry = activations.ActivationRegistry()
    specs = {str(registry.resolve(name)) for name in registry.list_activations()}
    assert {str(registry.resolve(name)) for name in names} == specs
    assert len(names) == len(specs)
    assert {"gelu", "gelu_tanh", "gelu_sigmoid", "clipped_gelu", "cauchy_linear"} <= names.keys()


def test_a_page_says_what_is_known(names):
    page = gallery.page("gelu_tanh", names["gelu_tanh"], PlotFiles("gelu_tanh", {"f": "f of gelu_tanh"}))
    assert "| lowest point | -0.17004075 at x = -0.75246142 |" in page
    assert "| forward | 3.46" in page
    assert "1.533581" in page
    assert "`Gelu(x, approximate='tanh')`" in page
    assert "| GPT-2 | transformers" in page
    assert "[arXiv 1606.08415](https://arxiv.org/abs/1606.08415)" in page
    assert page.count("![f of gelu_tanh]") == 2
    assert "gelu_tanh-f-dark.svg#only-dark" in page


def test_the_tables_lead_to_the_pages(names):
    text = (gallery_facts.ROOT / "docs" / "activations.md").read_text().replace("| `relu` |", "| [`relu`][a.relu] |")
    assert set(re.findall(r"^\| \[`.*`\]\(gallery/(\w+)\.md\) \|", gallery.with_pages(text), re.M)) == names.keys()


@pytest.mark.full
def test_the_code_of_every_page_runs(names, capsys):
    for name in names:
        exec(gallery.USE.format(name=name), {})
    assert capsys.readouterr().out.count("ActivationInfo(") == len(names)
