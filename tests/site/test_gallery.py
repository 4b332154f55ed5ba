"""The gallery has a page for each activation of the registry, with what its row and the records say."""

import re

import pytest
from website import gallery, gallery_facts
from website.gallery_plots import DARK, PlotFiles, dark, interval

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


@pytest.mark.parametrize(
    ("name", "arguments", "cases"),
    [
        ("gelu", {}, ["as it stands"]),
        ("gelu", {"approximate": "tanh"}, ["as it stands"]),
        ("swish", {}, ["1.7", "-0.4"]),
        ("cdf_linear", {}, ["as it stands"]),
        ("cdf_linear", {"distribution": "cauchy"}, ["as it stands"]),
        ("nothing", {}, []),
    ],
)
def test_accuracy_is_read_from_the_page_on_numerics(name, arguments, cases):
    page = (gallery_facts.ROOT / "docs" / "numerics.md").read_text()
    rows = gallery_facts.accuracy_rows(name, arguments, page)
    assert [row[0] for row in rows] == cases
    assert all(re.fullmatch(r"\d\.\d\d", cell) for row in rows for cell in row[1:])


def test_the_interval_holds_every_special_point(names):
    assert interval(names["gelu"]) == (-5.0, 5.0)
    assert interval(names["clipped_gelu"])[1] == 12.0


def test_the_dark_plot_has_no_colour_of_the_light_one():
    assert not set(DARK) & set(re.findall(r"#\w{6}", dark(" ".join(DARK))))


@pytest.mark.parametrize(
    ("formula", "wanted"),
    [
        ("x Phi((x - mu) / sigma)", "x Φ((x - μ) / σ)"),  # noqa: RUF001
        ("alpha_p x^2 if x > 0", "α<sub>p</sub> x<sup>2</sup> if x &gt; 0"),  # noqa: RUF001
        ("sqrt(2 / pi) alphabet", "√(2 / π) alphabet"),
    ],
)
def test_formulas_have_letters_roots_and_powers(formula, wanted):
    assert gallery.typeset(formula) == wanted
