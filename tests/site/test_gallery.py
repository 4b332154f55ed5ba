"""The gallery has a page for each activation of the registry, whose code runs."""

import pytest
from website import gallery

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


@pytest.mark.full
def test_the_code_of_every_page_runs(names, capsys):
    for name in names:
        exec(gallery.USE.format(name=name), {})
    assert capsys.readouterr().out.count("ActivationInfo(") == len(names)
