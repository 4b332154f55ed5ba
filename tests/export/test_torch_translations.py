import contextlib
import inspect
from collections.abc import Iterator

import onnx
import pytest
import torch
from torch import nn

from lit_gelu.export.trace import _quiet
from lit_gelu.export.torch_translations import _asked_once, _kept, read_once


def exported(net: nn.Module, **options: object) -> onnx.ModelProto:
    with _quiet():
        return torch.onnx.export(net, (torch.zeros(2, 4),), dynamo=True, verbose=False, **options).model_proto


@contextlib.contextmanager
def sources_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """List the functions whose source is read meanwhile."""
    read, getsource = [], inspect.getsource
    with monkeypatch.context() as patched:
        patched.setattr(inspect, "getsource", lambda function: read.append(function) or getsource(function))
        yield read


def test_a_later_export_reads_no_translation_again_and_writes_the_same(monkeypatch):
    net = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.LayerNorm(3))
    with sources_read(monkeypatch) as by_torch:
        wanted = exported(net)
    with read_once():
        exported(net)
        with sources_read(monkeypatch) as again:
            found = exported(net)
    assert found == wanted
    if not _kept():
        pytest.skip("this release of onnxscript has no TracedOnnxFunction.function_ir")
    assert len(by_torch) > 100
    assert again == []


def test_torch_is_left_as_it_was_also_after_a_failure():
    places = [(owner, name) for owner, name, _ in (*_kept(), *_asked_once())]
    before = [vars(owner)[name] for owner, name in places]
    with pytest.raises(NotImplementedError), read_once(), read_once():
        raise NotImplementedError
    assert [vars(owner)[name] for owner, name in places] == before


def test_translations_that_the_caller_gives_are_read_in_each_export():
    from onnxscript import opset18 as op

    class Sine(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

    def cosine(x):
        return op.Cos(x)

    def tangent(x):
        return op.Tan(x)

    for given in (cosine, tangent):
        with read_once():
            model = exported(Sine(), custom_translation_table={torch.ops.aten.sin.default: given})
        assert [node.op_type for node in model.graph.node] == [{cosine: "Cos", tangent: "Tan"}[given]]


def test_composite_operators_are_asked_for_once_in_each_export(monkeypatch):
    if not list(_asked_once()):
        pytest.skip("this release of torch has no _materialize_cpp_cia_ops")
    ask, asked = torch._C._dispatch_get_registrations_for_dispatch_key, []
    monkeypatch.setattr(
        torch._C, "_dispatch_get_registrations_for_dispatch_key", lambda key: asked.append(key) or ask(key)
    )
    net = nn.Linear(4, 3)
    exported(net)
    assert len(asked) > 10
    for _ in range(2):
        asked.clear()
        with read_once():
            exported(net)
        assert asked == ["CompositeImplicitAutograd"]
