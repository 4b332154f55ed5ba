"""The class that a rewritten call gives its module: compiled, copied, pickled, shown in tracebacks as any other."""

import copy
import io
import pickle

import functional_nets as nets
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from lit_gelu import surgery
from lit_gelu.errors import SwapError

ALL = nets.REWRITTEN | nets.HELD
SAMPLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("cls", "backend"), [*((cls, "eager") for cls in ALL), *((cls, "aot_eager") for cls in (nets.Function, nets.Held))]
)
def test_torch_compile_takes_it_whole_and_notices_every_swap(cls, backend):
    torch._dynamo.reset()
    model = cls().eval()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    before = compiled(SAMPLE)
    report = surgery.swap(compiled, {"*": "softplus"}, SAMPLE)
    torch.testing.assert_close(compiled(SAMPLE), model.expected(SAMPLE, F.softplus))
    report.undo()
    assert torch.equal(compiled(SAMPLE), before)


def test_blocks_share_one_class_so_that_one_graph_serves_them():
    model = nn.Sequential(*(nets.Function() for _ in range(4)))
    surgery.swap(model, {"*": "silu"}, SAMPLE)
    assert len({type(block) for block in model}) == 1
    assert type(model[0]).__name__ == "Function"
    assert isinstance(model[0], nets.Function)


@pytest.mark.parametrize("cls", ALL)
def test_copies_and_pickles_keep_the_new_activation(cls):
    model = cls()
    surgery.swap(model, {"*": "prelu"}, SAMPLE)
    expected = model(SAMPLE)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), torch.load(file, weights_only=False)):
        assert torch.equal(twin(SAMPLE), expected)
        assert type(twin) is type(model)
        assert not {id(p) for p in twin.parameters()} & {id(p) for p in model.parameters()}


def test_source_that_is_not_what_runs_or_not_there_is_not_rewritten(tmp_path):
    import importlib.util

    path = tmp_path / "changing_net.py"
    text = "import torch.nn.functional as F\nfrom torch import nn\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
    path.write_text(text + "        return F.gelu(x)\n")
    spec = importlib.util.spec_from_file_location("changing_net", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.write_text(text + "        y = x + 1\n        return F.gelu(y)\n")
    scope = {"F": F, "nn": nn}
    exec("class Net(nn.Module):\n    def forward(self, x):\n        return F.gelu(x)\n", scope)
    for model in (module.Net(), scope["Net"]()):
        with pytest.raises(SwapError):
            surgery.swap(model, {"*": "silu"}, SAMPLE)
        assert torch.equal(model(SAMPLE), F.gelu(SAMPLE))


def test_a_pickle_is_refused_where_the_source_is_another():
    model = nets.Function()
    surgery.swap(model, {"*": "silu"}, SAMPLE)
    content = pickle.dumps(model)
    assert content.count(b"F.gelu(self.first(x))") == 1
    with pytest.raises(SwapError):
        pickle.loads(content.replace(b"F.gelu(self.first(x))", b"F.silu(self.first(x))"))


class Layer(nn.Linear):
    def forward(self, x):
        return F.gelu(torch.tanh(F.linear(x, self.weight, self.bias)))


@pytest.mark.parametrize("how", [parametrizations.weight_norm, parametrizations.orthogonal])
def test_a_swap_before_parametrize_lasts_and_one_behind_it_is_refused(how):
    torch.manual_seed(0)
    model = Layer(4, 4)
    surgery.swap(model, {"*:gelu": "silu"}, SAMPLE)
    how(model)
    expected = F.silu(torch.tanh(F.linear(SAMPLE, model.weight, model.bias)))
    assert torch.equal(model(SAMPLE), expected)
    with pytest.raises(SwapError):
        surgery.swap(how(Layer(4, 4)), {"*:gelu": "silu"}, SAMPLE)
    parametrize.remove_parametrizations(model, "weight")
    torch.testing.assert_close(model(SAMPLE), expected)
