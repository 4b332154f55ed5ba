"""Key-value caches and other objects with tensors: inputs and outputs of a file, and decoding with them."""

import inspect
from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor, nn

from lit_gelu.export import ExportError, OnnxPredictor, check_parity, export_onnx

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")

VOCABULARY, STEPS = 40, 8
SMALL = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 2, "max_position_embeddings": 64}
T5 = {"vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
WHISPER = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_mel_bins": 4,
    "max_source_positions": 6, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
CONFIGURATIONS = {
    "Llama": {**SMALL, **HEADS, "num_key_value_heads": 1},
    "Qwen2": {**SMALL, **HEADS, "num_key_value_heads": 1},
    "GPT2": {"vocab_size": VOCABULARY, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "T5": {**T5, "decoder_start_token_id": 0},
    "Whisper": {**WHISPER, "decoder_start_token_id": 1},
}
HEAD = {"GPT2": "LMHeadModel", "T5": "ForConditionalGeneration", "Whisper": "ForConditionalGeneration"}
BATCH = {0: "batch"}


class Decoder:
    """A net of transformers with random weights, and how its decoder is called."""

    def __init__(self, name):
        torch.manual_seed(0)
        config = getattr(transformers, f"{name}Config")(**CONFIGURATIONS[name])
        self.net = getattr(transformers, f"{name}{HEAD.get(name, 'ForCausalLM')}")(config).eval()
        self.cache = "cache" if "cache" in inspect.signature(self.net.forward).parameters else "past_key_values"
        self.has_encoder, self.is_masked = name in {"T5", "Whisper"}, name not in {"T5", "Whisper"}
        self.tokens = "decoder_input_ids" if self.has_encoder else "input_ids"
        self.past = transformers.DynamicCache

    def first(self, batch):
        """Return what no call changes, and an empty cache; the encoder's part of one is filled at the first call."""
        if not self.has_encoder:
            return {}
        return {"encoder_outputs": (torch.randn(batch, 6, 16, generator=torch.Generator().manual_seed(1)),)}

    def call(self, fixed, tokens, cache, length):
        """Call the net, and return its outputs and the cache."""
        mask = {"attention_mask": torch.ones(len(tokens), length, dtype=torch.long)} if self.is_masked else {}
        past = {} if cache is None else {self.cache: cache}
        with torch.no_grad():
            output = self.net(**fixed, **{self.tokens: tokens}, **mask, **past, use_cache=True)
        return output.logits, output.get("cache", output.get("past_key_values"))

    def sample(self):
        """Return a sample with a filled cache, and its open sizes."""
        fixed, tokens = self.first(2), torch.arange(6).reshape(2, 3)
        _, cache = self.call(fixed, torch.arange(8).reshape(2, 4), None, 4)
        mask = {"attention_mask": torch.ones(2, 7, dtype=torch.long)} if self.is_masked else {}
        shapes = {self.tokens: {1: "sequence"}}
        shapes |= {"attention_mask": {1: "past + sequence"}} if mask else {}
        parts = "past_key_values.*.decoder.*" if self.has_encoder else "past_key_values"
        return {**fixed, self.tokens: tokens, **mask, self.cache: cache, "use_cache": True}, {
            **shapes,
            parts: {2: "past"},
        }


@pytest.fixture(
    scope="module", params=["Llama", *(pytest.param(n, marks=pytest.mark.full) for n in [*CONFIGURATIONS][1:])]
)
def exported(request, tmp_path_factory):
    """A decoder, its file and its sample."""
    decoder, path = Decoder(request.param), tmp_path_factory.mktemp("caches") / "decoder.onnx"
    sample, shapes = decoder.sample()
    export_onnx(decoder.net, path, sample, dynamic_shapes=shapes)
    return decoder, path, sample


def test_names_are_those_of_other_exporters(exported):
    decoder, path, _ = exported
    part = ".decoder" if decoder.has_encoder else ""
    graph = onnx.load(path).graph
    assert f"past_key_values.1{part}.value" in [value.name for value in graph.input]
    assert f"present.1{part}.value" in [value.name for value in graph.output]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("past", [0, 1, 5])
def test_eight_steps_with_the_files_own_cache(exported, batch, past):
    decoder, path, _ = exported
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs = [value.name for value in session.get_outputs()]
    generator = torch.Generator().manual_seed(past)
    fixed = decoder.first(batch)
    cache = None
    if past or decoder.has_encoder:
        tokens = torch.randint(VOCABULARY, (batch, max(past, 1)), generator=generator)
        _, cache = decoder.call(fixed, tokens, None, past)
        past = max(past, 1)
    state = {}
    for value in session.get_inputs():
        if value.name.startswith("past_key_values."):
            empty = np.zeros((batch, *(n if isinstance(n, int) else 0 for n in value.shape[1:])), np.float32)
            state[value.name] = empty if cache is None else _of_cache(cache, value.name)
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (batch, 1), generator=generator)
        feed = {decoder.tokens: tokens.numpy(), **state}
        feed |= {"attention_mask": np.ones((batch, past + 1), np.int64)} if decoder.is_masked else {}
        feed |= {"encoder_outputs_0": fixed["encoder_outputs"][0].numpy()} if fixed else {}
        names = {value.name for value in session.get_inputs()}
        y = dict(zip(outputs, session.run(None, {k: v for k, v in feed.items() if k in names}), strict=True))
        logits, cache = decoder.call(fixed, tokens, cache, past + 1)
        past += 1
        np.testing.assert_allclose(y["logits"], logits.numpy(), rtol=0, atol=1e-5)
        state = {name: y[name.replace("past_key_values", "present")] for name in state}


def _of_cache(cache, name):
    """Return a tensor of a cache by its name in a file."""
    _, layer, *part, kind = name.split(".")
    if part:
        cache = cache.self_attention_cache if part == ["decoder"] else cache.cross_attention_cache
    entry = cache.layers[int(layer)]
    return (entry.keys if kind == "key" else entry.values).numpy()


def test_decoding_is_a_part_of_the_proof(exported):
    decoder, path, sample = exported
    report = check_parity(decoder.net, path, input_sample=sample)
    rows = [row for row in report.rows if row.inputs.startswith("decoding") and row.output == "logits"]
    assert [row.passed for row in rows] == [True, True]
    assert not any("not tried" in note for note in report.notes)


def test_what_one_call_hides_and_nine_show(exported, tmp_path):
    decoder, path, sample = exported
    model = onnx.load(path)
    name = "present.0.decoder.key" if decoder.has_encoder else "present.0.key"
    # Each call returns the keys 6e-6 too large, which is within what float32 may be off by.
    for node in model.graph.node:
        node.output[:] = [f"{name}.exact" if each == name else each for each in node.output]
    model.graph.initializer.append(numpy_helper.from_array(np.float32(1 + 6e-6), "drift"))
    model.graph.node.append(helper.make_node("Mul", [f"{name}.exact", "drift"], [name]))
    onnx.save(model, tmp_path / "drifts.onnx")
    report = check_parity(decoder.net, tmp_path / "drifts.onnx", input_sample=sample, strict=False)
    assert {row.inputs.partition(",")[0] for row in report.failures} == {"decoding"}


@pytest.mark.full
def test_a_sample_of_one_token(tmp_path):
    decoder, path = Decoder("Llama"), tmp_path / "decoder.onnx"
    _, cache = decoder.call({}, torch.arange(2).reshape(2, 1), None, 1)
    sample, shapes = decoder.sample()
    sample |= {"input_ids": torch.arange(2).reshape(2, 1), "attention_mask": torch.ones(2, 2, dtype=torch.long)}
    export_onnx(decoder.net, path, {**sample, decoder.cache: cache}, dynamic_shapes=shapes)
    assert check_parity(decoder.net, path, input_sample=decoder.sample()[0]).passed


@pytest.mark.full
@pytest.mark.parametrize("kind", ["static", "mamba"])
def test_caches_that_are_written_in_place(tmp_path, kind):
    torch.manual_seed(0)
    if kind == "static":
        net = transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIGURATIONS["Llama"])).eval()
        cache = transformers.StaticCache(config=net.config, max_cache_len=16)
    else:
        sizes = {"vocab_size": VOCABULARY, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 2}
        net, cache = transformers.MambaModel(transformers.MambaConfig(**sizes, time_step_rank=2)).eval(), None
    name = "cache" if "cache" in inspect.signature(net.forward).parameters else "past_key_values"
    with torch.no_grad():
        output = net(input_ids=torch.arange(8).reshape(2, 4), use_cache=True, **({name: cache} if cache else {}))
    sample = {"input_ids": torch.arange(2).reshape(2, 1), name: cache or output[name], "use_cache": True}
    export_onnx(net, tmp_path / "net.onnx", sample)
    before = {value for value in OnnxPredictor(tmp_path / "net.onnx").input_names if "." in value}
    after = {value for value in OnnxPredictor(tmp_path / "net.onnx").output_names if "." in value}
    assert len(before) == len(after) == (6 if kind == "static" else 4)
    assert check_parity(net, tmp_path / "net.onnx", input_sample=sample).passed


@pytest.mark.full
def test_a_file_that_takes_no_empty_cache_fails(tmp_path):
    decoder, path = Decoder("Llama"), tmp_path / "decoder.onnx"
    sample, shapes = decoder.sample()
    export_onnx(decoder.net, path, sample, dynamic_shapes=shapes)
    model = onnx.load(path)
    first = numpy_helper.from_array(np.int64(0), "first")  # of the places in the cache, of which there may be none
    for node in model.graph.node:
        node.output[:] = ["logits.exact" if name == "logits" else name for name in node.output]
    model.graph.initializer.extend([first, numpy_helper.from_array(np.float32(0), "nothing")])
    model.graph.node.extend([
        helper.make_node("Gather", ["past_key_values.0.key", "first"], ["place"], axis=2),
        helper.make_node("ReduceSum", ["place"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "nothing"], ["zero"]),
        helper.make_node("Add", ["logits.exact", "zero"], ["logits"]),
    ])
    onnx.save(model, path)
    report = check_parity(decoder.net, path, input_sample=sample, strict=False)
    assert {row.inputs.partition(",")[0] for row in report.failures} == {"decoding"}


@dataclass
class State:
    """A dataclass that torch does not know."""

    mean: Tensor
    count: Tensor


class Running(nn.Module):
    """Returns a new state, or keeps it to itself."""

    def __init__(self, returns):
        super().__init__()
        self.returns = returns

    def forward(self, x, state):
        state.count = state.count + 1
        state.mean.add_((x - state.mean) / state.count)
        return (x - state.mean, state) if self.returns else x - state.mean


def _running_sample():
    return torch.randn(2, 4), State(torch.zeros(2, 4), torch.ones(2, 1))


def test_a_dataclass_is_named_inputs_and_outputs(tmp_path):
    net, (x, state) = Running(returns=True), _running_sample()
    export_onnx(net, tmp_path / "net.onnx", (x, state))
    assert (float(state.mean.abs().sum()), float(state.count.sum())) == (0.0, 2.0)  # the caller's is not touched
    predictor = OnnxPredictor(tmp_path / "net.onnx")
    assert (predictor.input_names, predictor.output_names) == (
        ["x", "state.mean", "state.count"],
        ["output_0", "output_1.mean", "output_1.count"],
    )
    assert check_parity(net, tmp_path / "net.onnx", input_sample=(x, state)).passed


def test_a_state_that_is_changed_and_not_returned(tmp_path):
    with pytest.raises(ExportError, match="State and does not return it"):
        export_onnx(Running(returns=False), tmp_path / "net.onnx", _running_sample())


@pytest.mark.full
def test_a_cache_that_counts_in_python_numbers(tmp_path):
    config = transformers.MistralConfig(**SMALL, **HEADS, num_key_value_heads=1, sliding_window=5)
    net = transformers.MistralForCausalLM(config).eval()
    ids, shapes = torch.arange(6).reshape(2, 3), {"input_ids": {1: "sequence"}, "past_key_values": {2: "past"}}
    name = "cache" if "cache" in inspect.signature(net.forward).parameters else "past_key_values"
    for cache in (transformers.DynamicCache(config=config), transformers.DynamicCache()):
        with torch.no_grad():
            net(input_ids=ids, **{name: cache}, use_cache=True)
        sample = {"input_ids": ids, name: cache, "use_cache": True}
        if cache.layers[0].is_sliding:
            with pytest.raises(ExportError, match="cumulative_length"):
                export_onnx(net, tmp_path / "net.onnx", sample, dynamic_shapes=shapes)
        else:
            export_onnx(net, tmp_path / "net.onnx", sample, dynamic_shapes=shapes)
            assert check_parity(net, tmp_path / "net.onnx", input_sample=sample).passed
