"""Which activations are written out; tests of the rules and of `written` compare them with torch's own."""

from torch import nn

from lit_gelu.replicas.forward.written_activations import written_activation


def test_an_activation_in_place_is_not_written():
    assert written_activation(nn.ReLU(inplace=True)) is None
    assert written_activation(nn.ReLU()) is not None
