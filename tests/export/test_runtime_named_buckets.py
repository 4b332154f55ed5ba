"""Buckets over the file's own sizes: a masked net gives in a padded run what it gives in one of the call's own size."""

import math
import pickle

import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lit_gelu.export import ModelInputError, OnnxPredictor, ProviderError, export_onnx
from lit_gelu.export.runtime import CPU
from lit_gelu.export.runtime.binding import TensorRunner
from lit_gelu.export.runtime.buckets import BucketRunner, bucket_axes
from lit_gelu.export.runtime.ports import Port
from lit_gelu.export.runtime.settings import named_buckets

SIZES = {"batch": (1, 3), "sequence": (4, 8)}


class Bert(nn.Module):
    """One layer of attention that looks at what the mask allows; a state for each token, and one for the sequence."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(16, 8)
        self.q, self.k, self.v, self.out, self.pooler = (nn.Linear(8, 8) for _ in range(5))

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        q, k, v = (f(x).view(*x.shape[:2], 2, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask[:, None, None, :].bool())
        y = x + F.gelu(self.out(y.transpose(1, 2).flatten(2)))
        return {"states": y, "pooled": torch.tanh(self.pooler(y[:, 0]))}


def tokens(rows, length):
    """Ids, and a mask that pads each row at its end."""
    mask = torch.arange(length) < torch.randint(1, length + 1, (rows, 1))
    return {"input_ids": torch.randint(20, (rows, length)), "attention_mask": mask.long()}


def runner(path):
    return TensorRunner(OnnxPredictor(path, [CPU]).session, torch.device("cpu"))


@pytest.fixture(scope="module")
def bert():
    return Bert().eval()


@pytest.fixture(scope="module")
def path(bert, tmp_path_factory):
    path = tmp_path_factory.mktemp("named_buckets") / "bert.onnx"
    export_onnx(bert, path, tokens(2, 5), dynamic_shapes="sequence")
    return path


@pytest.fixture(scope="module")
def bucketed(path):
    return BucketRunner(runner(path), SIZES)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8])
def test_padded_and_divided_calls_give_what_unpadded_ones_give(bert, path, bucketed, rows, length):
    bucketed(tokens(3, 8))  # what an earlier call leaves behind does not matter
    inputs = tokens(rows, length)
    found, unpadded = bucketed(inputs), runner(path)(inputs) if rows else None
    with torch.no_grad():
        expected = list(bert(**inputs).values())
    for y, own in zip(found, expected, strict=True):
        torch.testing.assert_close(y, own, rtol=1e-5, atol=1e-6)
    for y, own in zip(found, unpadded or found, strict=True):
        torch.testing.assert_close(y, own, rtol=1e-5, atol=1e-6)


def test_each_pair_of_sizes_has_its_buffers_and_they_are_run_when_it_is_made(path):
    runs = []

    class Noted(BucketRunner):
        def capture(self):
            runs.extend(tuple(buffers.inputs["input_ids"].shape) for buffers in self._buffers.values())
            super().capture()

    made = Noted(runner(path), SIZES)
    assert runs == [(1, 4), (1, 8), (3, 4), (3, 8)]
    assert made.holds(tokens(3, 4))
    assert not made.holds(tokens(2, 4))
    assert not made.holds(tokens(3, 5))


def test_what_stands_beyond_is_the_callers_choice(path, bucketed):
    chosen = BucketRunner(runner(path), SIZES, {"input_ids": 7})
    for made, value in ((bucketed, 0), (chosen, 7)):
        made(tokens(3, 8))
        made(tokens(3, 6))
        buffers = made._buffers[3, 8].inputs
        assert (buffers["input_ids"][:, 6:] == value).all()
        assert (buffers["attention_mask"][:, 6:] == 0).all()


def test_a_call_that_fits_no_bucket_is_refused_before_it_runs(bucketed):
    with pytest.raises(ModelInputError, match=r"'sequence' has to be the same.*at most 8.*input_ids \(2, 9\)"):
        bucketed(tokens(2, 9))
    with pytest.raises(ModelInputError, match=r"'sequence' has to be the same.*\(2, 5\), attention_mask \(2, 6\)"):
        bucketed({"input_ids": tokens(2, 5)["input_ids"], "attention_mask": tokens(2, 6)["attention_mask"]})
    with pytest.raises(ModelInputError, match=r"'batch' has to be the same"):
        bucketed({"input_ids": tokens(2, 5)["input_ids"], "attention_mask": tokens(1, 5)["attention_mask"]})


def saved(folder, inputs, outputs, body="y = Identity (x)"):
    text = f'<ir_version: 10, opset_import: ["": 20]> g ({inputs}) => ({outputs}) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "net.onnx")
    return folder / "net.onnx"


TIME = "float[batch, time] x"


@pytest.mark.parametrize(
    ("inputs", "body", "padding"),
    [
        (TIME, "y = Softmax (x)", {}),
        (f"{TIME}, float[batch, time] attention_mask", "y = Add (x, attention_mask)", {}),  # 0 is no padding there
        (f"{TIME}, int64[batch, time] token_type", "y = Add (x, x)", {"x": 0}),
        (f"{TIME}, bool[batch, time] key_padding_mask", "y = Add (x, x)", {"x": 0}),  # true may be padding
        (f"{TIME}, int64[batch] attention_mask", "y = Add (x, x)", {}),  # of another size
    ],
)
def test_a_size_whose_padding_can_change_the_answer_is_refused(tmp_path, inputs, body, padding):
    path = saved(tmp_path, inputs, "float[batch, time] y", body)
    with pytest.raises(ModelInputError, match=r"Padding 'time' can change.*say what stands there: padding=\{'x': 0"):
        BucketRunner(runner(path), {"batch": (2,), "time": (4,)}, padding)


def test_what_the_caller_says_of_padding_is_taken(tmp_path):
    """The largest of each row is not that of what stands behind it, where that is less than everything."""
    path = saved(tmp_path, TIME, "float[batch, 1] y", "axes = Constant <value_ints = [1]> () y = ReduceMax (x, axes)")
    made = BucketRunner(runner(path), {"batch": (2,), "time": (4,)}, {"x": -math.inf})
    x = -torch.rand(5, 3) - 1
    assert torch.equal(made({"x": x})[0], x.amax(1, keepdim=True))
    with pytest.raises(ModelInputError, match=r"padding= names z. The inputs are x"):
        BucketRunner(runner(path), {"batch": (2,), "time": (4,)}, {"x": 0, "z": 0})


def test_the_smallest_bucket_that_holds_a_call_runs(path):
    made, ran = BucketRunner(runner(path), SIZES), []
    for sizes, buffers in made._buffers.items():
        buffers.run = lambda session, sizes=sizes: ran.append(sizes)
    for rows, length in ((1, 1), (1, 5), (2, 4), (4, 8)):
        made(tokens(rows, length))
    assert ran == [(1, 4), (1, 8), (3, 4), (3, 8), (1, 8)]


def test_an_input_without_a_batch_goes_into_every_piece(tmp_path):
    path = saved(tmp_path, "float[n, 3] x, float[3] w", "float[n, 3] y", "y = Mul (x, w)")
    x, w = torch.randn(5, 3), torch.randn(3)
    assert torch.equal(BucketRunner(runner(path), {"n": (2,)})({"x": x, "w": w})[0], x * w)


def test_rows_that_are_not_the_first_size_everywhere_are_no_batch(tmp_path):
    """A size that an input has elsewhere too, such as that of a square mask, is no row of a batch."""
    path = saved(tmp_path, "float[n, 4] x, float[n, n] w", "float[n, 4] y", "y = MatMul (w, x)")
    with pytest.raises(ModelInputError, match="Padding 'n' can change"):
        BucketRunner(runner(path), {"n": (4,)})
    made = BucketRunner(runner(path), {"n": (2, 4)}, {"x": 0, "w": 0})
    x, w = torch.randn(3, 4), torch.randn(3, 3)
    torch.testing.assert_close(made({"x": x, "w": w})[0], w @ x)
    with pytest.raises(ModelInputError, match=r"'n' has to be the same.*at most 4"):
        made({"x": torch.randn(5, 4), "w": torch.randn(5, 5)})


@pytest.mark.parametrize(
    ("output", "buckets"),
    [
        (("batch", "time"), {"batch": (2,)}),  # one is missing
        (("batch", "time"), {"": (2,)}),  # the short form, of the batch alone
        (("batch", "time"), {"batch": (2,), "time": (4,), "width": (4,)}),  # none of the file's
        (("batch", "length"), {"batch": (2,), "time": (4,)}),  # an output's size does not follow
        (("batch", "length"), {"batch": (2,), "time": (4,), "length": (4,)}),
        (("batch", None), {"batch": (2,), "time": (4,)}),
    ],
)
def test_sizes_that_do_not_follow_from_buckets_are_refused(output, buckets):
    ports = [Port(name, "tensor(float)", shape) for name, shape in (("x", ("batch", "time")), ("y", output))]
    with pytest.raises(
        ModelInputError, match=r"Buckets need every open size.*here: x \('batch', 'time'\), y \('batch',"
    ):
        bucket_axes({"x": ports[0]}, {"y": ports[1]}, buckets)


@pytest.mark.parametrize(
    ("batch", "named", "message"),
    [
        ((2,), {"batch": (2,)}, "batch_buckets= is a short form of buckets="),
        ((), {"batch": ()}, "is not accepted. Give sizes by name"),
        ((), [2], "is not accepted. Give sizes by name"),
        ((), {"batch": (2, 0)}, r"buckets of 'batch'=\[2, 0\]: \[0\] are no sizes"),
    ],
)
def test_buckets_that_are_none(batch, named, message):
    with pytest.raises(ProviderError, match=message):
        named_buckets(batch, named)
    assert named_buckets((), {"a": [4, 2, 4], "b": [1]}) == {"a": (2, 4), "b": (1,)}


def test_the_predictor_takes_them_for_cuda_alone(path):
    with pytest.raises(ProviderError, match=r"buckets=\{'batch': \(1, 3\).*are CUDA graphs; here CPUExecution"):
        OnnxPredictor(path, [CPU], buckets=SIZES)


def test_a_pickled_predictor_asks_for_the_same(path, monkeypatch):
    asked = []
    monkeypatch.setattr(OnnxPredictor, "_open", lambda self: asked.append(self._request))
    predictor = OnnxPredictor(path, [CPU], buckets=SIZES, padding={"input_ids": 1})
    pickle.loads(pickle.dumps(predictor))
    assert asked[0] == asked[1]
    assert (asked[1].buckets, asked[1].padding) == (SIZES, {"input_ids": 1})
