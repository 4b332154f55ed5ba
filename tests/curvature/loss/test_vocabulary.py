"""Cross-entropy over a large vocabulary in chunks: the products of torch's double backward, and less memory."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from lit_gelu.curvature.loss import hessian_operator, operators, vocabulary

WORDS, WIDTH = 4200, 8


class Net(nn.Module):
    """A language model of one hidden layer."""

    def __init__(self, tied=False, bias=True):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=bias)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(F.gelu(self.layer(self.embed(ids))))


def hf_loss(logits, ids):
    """As transformers computes it."""
    labels = F.pad(ids, (0, 1), value=-100)[..., 1:]
    return F.cross_entropy(logits.float().view(-1, WORDS), labels.reshape(-1), ignore_index=-100, reduction="sum") / 7


def shifted(logits, ids):
    return F.cross_entropy(logits[..., :-1, :].contiguous().view(-1, WORDS), ids[..., 1:].reshape(-1))


def some_ignored(logits, ids):
    words = ids.reshape(-1)
    return F.cross_entropy(logits.reshape(-1, WORDS), words.where(words % 2 > 0, -1), ignore_index=-1)


LOSSES = {
    "shifted rows": shifted,
    "flattened": lambda z, ids: nn.CrossEntropyLoss(reduction="sum")(z.flatten(0, 1), ids.flatten()),
    "some ignored": some_ignored,
    "one sequence": lambda z, ids: F.cross_entropy(z[0], ids[0]),
    "as transformers": hf_loss,
}


def written_to(logits, ids):
    rows = logits[0]
    logits[..., 3] = -5.0
    return F.cross_entropy(rows, ids[0])


def with_a_hook(logits, ids):
    logits.register_hook(lambda gradient: 2 * gradient)
    return F.cross_entropy(logits[0], ids[0])


def with_a_hook_behind_a_view(logits, ids):
    rows = logits[0]
    logits.register_hook(lambda gradient: 0.1 * gradient)
    return F.cross_entropy(rows, ids[0])


TORCHS = {
    "no words": lambda z, ids: F.cross_entropy(z[0, :0], ids[0, :0], reduction="sum") + z.square().mean(),
    "with a hook behind a view": with_a_hook_behind_a_view,
    "smoothed": lambda z, ids: F.cross_entropy(z[0], ids[0], label_smoothing=0.1),
    "weighed": lambda z, ids: F.cross_entropy(z[0], ids[0], weight=torch.linspace(0, 1, WORDS).to(z)),
    "words before rows": lambda z, ids: F.cross_entropy(z.transpose(1, 2), ids),
    "a part of the words": lambda z, ids: F.cross_entropy(z[..., :9].reshape(-1, 9), ids.reshape(-1) % 9),
    "written to": written_to,
    "words in another order": lambda z, ids: F.cross_entropy(z[0][:, torch.arange(WORDS).flip(0)], ids[0]),
    "with a hook": with_a_hook,
    "scaled": lambda z, ids: F.cross_entropy(2 * z[0], ids[0]),
}


def products(net, loss, ids):
    closure = lambda: loss(net(ids), ids)  # noqa: E731
    with hessian_operator(closure, dict(net.named_parameters())) as hessian:
        vector = torch.randn(hessian.size, generator=torch.Generator().manual_seed(1)).to(hessian.dtype)
        (batch,) = hessian._batches
        assert not batch.is_custom
        return hessian.loss, hessian.gradient, hessian(vector)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", [*LOSSES, *TORCHS])
def test_products_are_those_of_double_backward(name, dtype, monkeypatch):
    torch.manual_seed(0)
    net, ids = Net(tied=name == "flattened", bias=name != "one sequence").to(dtype), torch.randint(0, WORDS, (3, 7))
    chunks = []
    monkeypatch.setattr(vocabulary, "_NUMBERS", 5 * WORDS)  # five rows at a time
    original = vocabulary._chunks
    monkeypatch.setattr(vocabulary, "_chunks", lambda *sizes: chunks.append(sizes) or original(*sizes))
    loss = (LOSSES | TORCHS)[name]
    ours = products(net, loss, ids)
    is_converted = (name, dtype) == ("as transformers", torch.float64)  # by float(), which is another function then
    assert bool(chunks) == (name in LOSSES and not is_converted)
    monkeypatch.setattr(operators, "ChunkedCrossEntropy", contextlib.nullcontext)
    for value, expected in zip(ours, products(net, loss, ids), strict=True):
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


class Largest(TorchDispatchMode):
    """Counts the results that are as large as the logits."""

    def __init__(self, size):
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.count += isinstance(result, torch.Tensor) and result.numel() >= self.size
        return result


def test_logits_are_computed_once_and_do_not_stay():
    rows, words = 512, 20_000
    hidden, head = torch.randn(rows, 16, requires_grad=True), nn.Linear(16, words, bias=False)
    targets = torch.randint(0, words, (rows,))
    with Largest(rows * words) as recording:
        hessian = hessian_operator(
            lambda: F.cross_entropy(head(hidden), targets), {"hidden": hidden, "weight": head.weight}
        )
    with hessian, Largest(rows * words) as product:
        hessian(torch.ones(hessian.size))
    assert (recording.count, product.count) == (1, 0)


def test_a_checkpointed_head_is_computed_again():
    torch.manual_seed(0)
    net, ids = Net(), torch.randint(0, WORDS, (3, 7))

    def of_hidden(hidden):
        return F.cross_entropy(net.head(hidden).view(-1, WORDS), ids.view(-1))

    def loss(is_checkpointed):
        hidden = F.gelu(net.layer(net.embed(ids)))
        return checkpoint(of_hidden, hidden, use_reentrant=False) if is_checkpointed else of_hidden(hidden)

    vector = torch.randn(sum(p.numel() for p in net.parameters()), generator=torch.Generator().manual_seed(1))
    results = []
    for is_checkpointed in (True, False):
        with hessian_operator(lambda kind=is_checkpointed: loss(kind), dict(net.named_parameters())) as hessian:
            results.append(hessian(vector))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-5 * float(results[1].abs().max()))


@pytest.mark.filterwarnings("ignore:size_average")
def test_the_deprecated_names_of_a_reduction_are_torchs():
    hidden, target = torch.randn(6, WIDTH), torch.randint(WORDS, (6,))
    weight = nn.Parameter(torch.randn(WORDS, WIDTH))

    def loss():
        return F.cross_entropy(F.linear(hidden, weight), target, size_average=False)

    with hessian_operator([loss], {"weight": weight}) as operator:
        assert operator.loss.item() == pytest.approx(F.cross_entropy(hidden @ weight.T, target, reduction="sum").item())
