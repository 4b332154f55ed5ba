"""Metadata of ONNX files, records of runs, files of a Triton repository and of tuning, of any content."""

import functools
import json
import tempfile
from pathlib import Path

import onnx
import torch
from fuzzing import fuzzed, plain, spec_texts, words
from hypothesis import strategies as st
from torch import nn

from lit_gelu.export import export_onnx
from lit_gelu.export.metadata import read_metadata
from lit_gelu.export.parity.check import check_parity
from lit_gelu.export.quantization.int8_metadata import KEY, read_record
from lit_gelu.export.runtime.tuning_file import TuningKey, digest, read_choice, tuning_path
from lit_gelu.export.serving import write_triton_repository

SITE = {"site": "1", "spec": "gelu", "row": "gelu", "lowering": "native", "operators": ["Gelu"], "calls": 1}
NET = nn.Sequential(nn.Linear(3, 2), nn.GELU()).eval()
THIS = TuningKey("1.24", "CPUExecutionProvider", "here")


@functools.cache
def good_file():
    """Return a small ONNX file, and its metadata."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "net.onnx"
        export_onnx(NET, path, torch.zeros(1, 3), labels=["cat", "dog"])
        content = path.read_bytes()
    return content, {entry.key: entry.value for entry in onnx.load_from_string(content).metadata_props}


def as_json(value):
    try:
        return json.dumps(value)
    except ValueError:  # a number that Python does not print
        return "1" * 5000
    except RecursionError:
        return "[" * 100_000


texts = words | plain.map(as_json) | st.sampled_from(["[" * 100_000, '{"a":' * 50_000, "1" * 10_000, "NaN"])
keys = st.sampled_from([
    "opset",
    "versions",
    "keep_fp32",
    "notes",
    "labels",
    "softmax",
    "parity",
    "sites",
    "format",
    "x",
])
rows = st.dictionaries(st.sampled_from([*SITE, "recipe", "folded", "x"]), plain | spec_texts, max_size=4).map(
    lambda changes: as_json([{**SITE, **changes}])
)
metadata = st.dictionaries(keys, texts, max_size=3) | st.fixed_dictionaries({"sites": rows})
lines = st.one_of(
    st.binary(max_size=40),
    texts.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.dictionaries(
        st.sampled_from(["key", "status", "curves", "result", "setting", "seed", "robustness", "seconds", "config"]),
        plain | st.just("finished"),
    ).map(lambda found: as_json({"schema": 1, "status": "finished", **found}).encode()),
)


def with_metadata(found):
    content, properties = good_file()
    return content, properties | {f"lit_gelu.{key}": value for key, value in found.items()}


def read_properties(found, folder):
    read_metadata(with_metadata(found)[1], "net.onnx")


def read_quantized(text, folder):
    read_record({KEY: text}, "net.onnx")


def written(found, folder):
    content, properties = with_metadata(found)
    proto = onnx.load_from_string(content)
    del proto.metadata_props[:]
    onnx.helper.set_model_props(
        proto, {key: value.encode("utf-8", "ignore").decode() for key, value in properties.items()}
    )
    path = folder / "net.onnx"
    onnx.save(proto, path)
    return path


def compare(found, folder):
    check_parity(NET, written(found, folder), input_sample=torch.zeros(1, 3), strict=False)


def serve(found, folder):
    with tempfile.TemporaryDirectory(dir=folder) as repository:
        write_triton_repository(written(found, folder), repository, device="cpu")


def serve_beside(content, folder):
    path = written({}, folder)
    with tempfile.TemporaryDirectory(dir=folder) as repository:
        write_triton_repository(path, repository, device="cpu")
        for name in ("config.pbtxt", "labels.txt"):
            (Path(repository) / "net" / name).write_bytes(content)
        write_triton_repository(path, repository, device="cpu", version=2, keep_config=True)
        write_triton_repository(path, repository, device="cpu", version=3)


def read_tuning(found, folder):
    path = folder / "net.onnx"
    path.write_bytes(b"model")
    key, choices = vars(THIS), found if isinstance(found, list) else [found]
    content = {"format": 1, "model_sha256": digest(path), "choices": choices}
    for entry in choices:
        if isinstance(entry, dict):
            entry.setdefault("key", key)
    tuning_path(path).write_text(as_json(content))
    read_choice(path, THIS)


def read_tuning_text(content, folder):
    (folder / "net.onnx").write_bytes(b"model")
    tuning_path(folder / "net.onnx").write_bytes(content)
    read_choice(folder / "net.onnx", THIS)


choices = st.dictionaries(
    st.sampled_from(["key", "settings", "ratio", "error", "limit", "batch_size", "x"]), plain, max_size=7
)

test_metadata_of_any_form = fuzzed(metadata, read_properties)
test_records_of_quantisation = fuzzed(texts, read_quantized)
test_files_of_any_metadata_are_compared = fuzzed(metadata, compare)
test_files_of_any_metadata_are_served = fuzzed(metadata, serve)
test_files_of_any_content_in_a_repository = fuzzed(st.binary(max_size=60), serve_beside)
test_files_of_tuning = fuzzed(choices | plain, read_tuning)
test_texts_of_tuning = fuzzed(lines, read_tuning_text)
