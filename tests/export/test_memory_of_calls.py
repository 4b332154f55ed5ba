"""What forward writes: an export leaves no trace of it, and refuses by name what a later call would read."""

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from lit_gelu.export import ExportError, OnnxPredictor, check_parity, export_onnx

X = torch.linspace(-2, 2, 16).reshape(2, 8)


class Stateful(nn.Module):
    """A layer, and a kind of memory."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.layer, self.kept = kind, nn.Linear(8, 8), [] if kind == "list" else {}
        shape = {"cache": (4, 16, 8), "maximum": (), "count": (), "warmup": ()}.get(kind, (8,))
        self.register_buffer("memory", torch.zeros(shape, dtype=torch.long if kind in {"count", "warmup"} else None))
        self.attribute = torch.zeros(4, 16, 8)

    def forward(self, x, positions=None):
        return getattr(self, f"with_{self.kind}")(F.gelu(self.layer(x)), positions)

    def with_cache(self, y, positions):
        self.memory[: len(y), positions] = y
        return y @ self.memory[: len(y)].mT

    def with_attribute(self, y, positions):
        self.attribute[: len(y), positions] = y
        return y @ self.attribute[: len(y)].mT

    def with_bank(self, y, _):
        out = y + self.memory
        self.memory.copy_(y.mean(0))
        return out

    def with_maximum(self, y, _):
        self.memory = torch.maximum(self.memory, y.abs().max())
        return y / self.memory

    def with_list(self, y, _):
        self.kept.append(y)
        return y + self.kept[0].mean()

    def with_monitor(self, y, _):
        self.memory.copy_(y.mean(0))
        return y

    def with_count(self, y, _):
        self.memory += 1
        return y

    def with_warmup(self, y, _):
        self.memory += 1
        return torch.where(self.memory < 1000, y, 2 * y)

    def with_mask(self, y, _):
        if "mask" not in self.kept or len(self.kept["mask"]) != y.shape[-1]:
            self.kept["mask"] = torch.tril(torch.ones(y.shape[-1], y.shape[-1]))
        return y @ self.kept["mask"]


def contents(net):
    """Return what a net holds, to be compared by its text."""
    return repr([(sorted(vars(part)), part.training, part.state_dict()) for part in net.modules()]) + repr(net.kept)


@pytest.mark.parametrize("kind", ["cache", "attribute", "bank", "maximum", "list", "warmup"])
def test_what_reads_an_earlier_call_is_refused_by_name(tmp_path, kind):
    net = Stateful(kind).eval()
    before = contents(net)
    sample = (torch.randn(2, 5, 8), torch.arange(5)) if kind in {"cache", "attribute"} else X
    place = {"attribute": "attribute", "list": "kept"}.get(kind, "memory")
    with pytest.raises(ExportError, match=place):
        export_onnx(net, tmp_path / "net.onnx", sample)
    assert contents(net) == before
    assert not (tmp_path / "net.onnx").exists()


@pytest.mark.parametrize("kind", ["monitor", "count", "mask"])
def test_what_nobody_reads_leaves_no_trace(tmp_path, kind):
    net, path = Stateful(kind).eval(), tmp_path / "net.onnx"
    before = contents(net)
    report = export_onnx(net, path, X)
    assert contents(net) == before
    assert any("memory" in note for note in report.notes) == (kind != "mask")
    assert check_parity(net, path, input_sample=X).passed
    torch.testing.assert_close(OnnxPredictor(path)(3 * X), net(3 * X), rtol=0, atol=1e-5)


class Holder:
    """What torch does not look into."""

    def __init__(self, content):
        self.content, self.calls = content, 0


class Slots:
    """What keeps its tensor where nobody can look for it."""

    __slots__ = ("content",)

    def __init__(self, content):
        self.content = content


class Objects(nn.Module):
    """Takes and gives objects."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, holder=None, log=()):
        y = F.gelu(self.layer(x))
        if holder is not None:
            holder.calls += 1
            holder.content = holder.content + 1
            y = y * holder.content
        log += (1,) if isinstance(log, tuple) else [1]
        return y, Slots(y), None, {"size": 3}


def test_tensors_in_an_object_that_is_changed_and_not_returned(tmp_path):
    content = torch.ones(8)
    holder = Holder(content)
    with pytest.raises(ExportError, match="Holder"):  # forward changes them, and does not return them
        export_onnx(Objects().eval(), tmp_path / "net.onnx", (X, holder))
    assert holder.calls == 0
    assert holder.content is content


def test_objects_and_lists_of_the_caller_stay_as_they_are(tmp_path):
    holder, log = Holder(1.0), []
    export_onnx(Objects().eval(), tmp_path / "net.onnx", (X, holder, log))
    assert (holder.content, holder.calls, log) == (1.0, 0, [])


def test_outputs_that_no_file_holds_are_said(tmp_path):
    net, path = Objects().eval(), tmp_path / "net.onnx"
    report = export_onnx(net, path, X)
    assert [value.name for value in onnx.load(path).graph.output] == ["output_0"]
    for notes in (report.notes, check_parity(net, path, input_sample=X).notes):
        text = " ".join(notes)
        assert all(part in text for part in ("Slots", "None", "3.size"))


class Scores(dict):
    """A mapping that its library registers without keys, as transformers 5.0 does."""


class Pair(tuple):
    """The same of a sequence."""


pytree.register_pytree_node(Scores, lambda s: (list(s.values()), list(s)), lambda v, k: Scores(zip(k, v, strict=True)))
pytree.register_pytree_node(Pair, lambda pair: (list(pair), None), lambda values, _: Pair(values))


def test_types_that_are_registered_without_keys(tmp_path):
    class Scoring(nn.Module):
        def forward(self, x):
            y = F.gelu(x["a"] + x["b"])
            return Scores(mean=y.mean(-1), all=Pair((y, y + 1)))

    net, path = Scoring().eval(), tmp_path / "net.onnx"
    export_onnx(net, path, ({"a": X, "b": X},))
    assert [value.name for value in onnx.load(path).graph.output] == ["mean", "all_0", "all_1"]
    sample = (Scores(a=X, b=X),)
    export_onnx(net, path, sample)
    assert [value.name for value in onnx.load(path).graph.input] == ["x_a", "x_b"]
    assert check_parity(net, path, input_sample=sample).passed


def test_weights_made_at_the_first_call(tmp_path):
    class Late(nn.Module):
        def forward(self, x):
            if not hasattr(self, "layer"):
                self.layer = nn.Linear(8, 2)
            return F.gelu(self.layer(x))

    net = Late().eval()
    with pytest.raises(ExportError, match=r"layer\.weight"):
        export_onnx(net, tmp_path / "net.onnx", X)
    assert not list(net.parameters())
    net(X)
    export_onnx(net, tmp_path / "net.onnx", X)
    assert check_parity(net, tmp_path / "net.onnx", input_sample=X).passed
