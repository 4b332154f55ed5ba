"""Architectures that others wrote: are all activations seen, does a swap undo, is the exported file right?

    python benchmarks/architectures.py                  those that the record lacks, each in a process: hours
    python benchmarks/architectures.py bert vit         of these, some: by substrings of their names
    python benchmarks/architectures.py --again bert     anew, what the record has too

Weights are random. Architectures of transformers have small configurations: every size of the default one is made
small by its name (`small`); those that this does not build are left out of the record, with the reason on standard
output. Of timm the smallest architecture of each module and some others, of torchvision a list. For each architecture

- calls of activations are counted by operators of torch (a dispatch mode here), beside the sites that `coverage` sees;
- the commonest activation is swapped for another and back, and outputs and weights are compared to the bit;
- `export_onnx` in its default is timed beside ``torch.onnx.export(dynamo=True)`` with the batch as a dynamic size, in
  processor seconds and peak memory, after both have translated a small net; each goes first for half of them;
- both files run in onnxruntime at the sample's batch, one row and three rows, and `check_parity` judges ours.

The record is ``docs/data/exported_architectures.json``.
"""

import argparse
import collections
import contextlib
import copy
import functools
import gc
import hashlib
import importlib
import importlib.metadata
import inspect
import io
import json
import logging
import math
import os
import resource
import signal
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

RECORD = Path(__file__).resolve().parent.parent / "docs" / "data" / "exported_architectures.json"
SECONDS, GIGABYTES, PARAMETERS = 100, 10, 30_000_000  # the most of a process
_OUT_OF_TIME = (-signal.SIGXCPU, -signal.SIGKILL)
RIGHT, FACTOR = 1e-4, 10  # of the largest output; of the error that float32 has by itself
LIBRARIES = ("transformers", "timm", "torchvision")
Row = dict[str, Any]
# Widely used ones beside the smallest of each module.
TIMM = (
    "convnext_atto", "edgenext_xx_small", "efficientnet_b0", "efficientnet_lite0", "fbnetc_100", "mixer_s32_224",
    "mnasnet_100", "mobilenetv2_100", "mobilenetv3_small_100", "mobileone_s0", "poolformer_s12", "regnety_002",
    "resnet18", "resnet50", "spnasnet_100", "tinynet_e", "vit_tiny_patch16_224",
)  # fmt: skip
TORCHVISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5",
    "mobilenet_v3_small", "regnet_y_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t", "vgg11",
    "vit_b_32", "segmentation.lraspp_mobilenet_v3_large", "segmentation.deeplabv3_mobilenet_v3_large", "video.r3d_18",
    "detection.ssdlite320_mobilenet_v3_large",
)  # fmt: skip
ACTIVATIONS = frozenset({
    "celu", "elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "log_sigmoid_forward", "mish", "prelu",
    "relu", "relu6", "rrelu_with_noise", "selu", "sigmoid", "silu", "softplus", "tanh",
})  # fmt: skip
# Sizes of a configuration by a part of their names, the first that fits: the rest stays as it is.
SIZES: Mapping[str, int] = {
    "vocab": 60, "max_position": 64, "max_source_positions": 16, "n_positions": 64, "n_ctx": 64, "num_key_value": 2,
    "num_attention_heads": 4, "attention_heads": 4, "num_heads": 4, "n_head": 4, "head_dim": 8, "num_hidden_layers": 2,
    "encoder_layers": 2, "decoder_layers": 2, "num_layers": 2, "n_layer": 2, "num_encoder": 2, "num_decoder": 2,
    "depth": 2, "intermediate_size": 48, "ffn_dim": 48, "d_ff": 48, "d_inner": 48, "hidden_size": 32, "d_model": 32,
    "n_embd": 32, "embed_dim": 32, "hidden_dim": 32, "embedding_size": 32, "num_experts_per": 2, "experts": 4,
    "d_kv": 8, "projection_dim": 16, "num_queries": 5, "num_mel_bins": 8, "d_rotary": 8, "rotary_dim": 8,
    "window_size": 4,
}  # fmt: skip


def small(config: Any, depth: int = 0) -> Any:
    """Make the sizes of a configuration of transformers small, in place, those of its parts too."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict") and depth < 3:
            small(value, depth + 1)
        with contextlib.suppress(Exception):  # some are properties
            setattr(config, name, _small(name, value))
    if isinstance(getattr(config, "layer_types", None), list):
        with contextlib.suppress(Exception):  # of some, a property
            config.layer_types = config.layer_types[: SIZES["num_hidden_layers"]]
    if hasattr(config, "kv_lora_rank"):  # a latent for all heads
        config.num_key_value_heads = config.num_attention_heads
    return config


def _small(name: str, value: Any) -> Any:
    """Return what a size of a configuration is made; everything else as it is."""
    if name.endswith("_token_id"):
        return 1 if isinstance(value, int) and value >= SIZES["vocab"] else value
    largest = {"image_size": 64, "patch_size": 16}.get(name)
    size = next((size for part, size in SIZES.items() if part in name), None) if largest is None else largest
    if name == "use_cache":
        return False
    if size is None or isinstance(value, bool) or "token" in name or "kernel" in name:
        return value
    if isinstance(value, (list, tuple)) and value and all(type(n) is int for n in value):
        return type(value)(size if "heads" in name else min(n, size) for n in value)
    return min(value, size) if isinstance(value, int) else value


def of_transformers(name: str) -> nn.Module:
    """Return a small model of a type of transformers."""
    library = importlib.import_module("transformers")
    config = small(library.CONFIG_MAPPING[name]())
    return library.AutoModel.from_config(config)


def names_of_transformers() -> list[str]:
    """Return the types of transformers that have a model without a head."""
    mapping = importlib.import_module("transformers.models.auto.modeling_auto").MODEL_MAPPING_NAMES
    return [f"transformers.{name}" for name in sorted(mapping)]


def names_of_timm() -> list[str]:
    """Return the smallest architecture of each module of timm, as far as their names tell."""
    timm = importlib.import_module("timm")
    sizes = (
        "test",
        "atto",
        "femto",
        "pico",
        "nano",
        "tiny",
        "xxs",
        "_t",
        "xs",
        "mini",
        "small",
        "_s",
        "18",
        "b0",
        "050",
    )
    names = []
    for module in timm.list_modules():
        models = timm.list_models(module=module)
        rank = {size: place for place, size in enumerate(sizes)}
        models.sort(key=lambda m: (min((rank[s] for s in sizes if s in m), default=len(sizes)), len(m)))
        names += [f"timm.{models[0]}"] if models else []
    return list(dict.fromkeys([*names, *(f"timm.{name}" for name in TIMM)]))


def built(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Return an architecture with random weights, and its sample."""
    from lit_gelu.export.pretrained import pretrained

    torch.manual_seed(0)
    library, _, model = name.partition(".")
    if library == "torchvision":
        module = importlib.import_module(f"torchvision.models.{model.rpartition('.')[0]}".rstrip("."))
        options = {"weights_backbone": None} if "." in model and "video" not in model else {}
        net = getattr(module, model.rpartition(".")[2])(weights=None, **options).eval().requires_grad_(False)
        size = {"inception_v3": 299, "maxvit_t": 224, "vit_b_32": 224}.get(model, 96)
        shape = (2, 3, 4, 56, 56) if "video" in model else (2, 3, size, size)
        return net, {next(iter(inspect.signature(net.forward).parameters)): torch.randn(shape)}
    if library == "timm":
        net = pretrained(importlib.import_module("timm").create_model(model)).model
    else:
        net = pretrained(of_transformers(model)).model
    with torch.no_grad():
        for parameter in net.parameters():  # initial weights hide activations in the outputs; of zeros all are ties
            if parameter.ndim > 1 and not parameter.any():
                parameter.normal_(0, 0.1)
            elif parameter.ndim > 1 and library == "transformers":  # of deep convolutions, outputs would be infinite
                parameter.mul_(4)
    return net, _of_small_images(net)


def _of_small_images(net: nn.Module) -> dict[str, Tensor]:
    """Return a model's sample, with images of 64 x 64 if it takes them."""
    sample = dict(net.example_input_array)
    smaller = {name: t[..., :64, :64] if t.ndim == 4 else t for name, t in sample.items()}
    try:
        with torch.no_grad():
            net(**smaller)
    except Exception:  # noqa: BLE001 - it takes what it was made for
        return sample
    return {name: t.contiguous() for name, t in smaller.items()}


class Calls(TorchDispatchMode):
    """Counts the operators of torch that are activations."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        if name in ACTIVATIONS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def tensors_of(output: Any) -> list[Tensor]:
    """Return the tensors of an output."""
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]


@contextlib.contextmanager
def measured(row: dict[str, Any], what: str) -> Iterator[None]:
    """Note processor seconds and the peak of memory above what was there."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before, start = _memory("VmRSS"), time.process_time()
    try:
        yield
    finally:
        row[f"{what}_seconds"] = round(time.process_time() - start, 2)
        row[f"{what}_megabytes"] = round(max(0.0, _memory("VmHWM") - before))


def _memory(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def attempt(row: dict[str, Any], what: str, action: Callable[[], Any]) -> Any:
    """Do something; note the reason if it fails."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001 - of several libraries: whatever they raise is the record
        text = f"{type(error).__name__}: {error}"
        row[f"{what}_error"] = " ".join((text.partition("## Exception summary")[2] or text).split())[:400]
        return None


def swap_and_undo(row: Row, net: nn.Module, sample: Mapping[str, Tensor]) -> None:
    """Count calls of activations, and swap the commonest for another and back."""
    from lit_gelu import surgery

    with torch.no_grad(), Calls() as calls:
        before = tensors_of(net(**sample))
    with torch.no_grad():
        is_random = not all(torch.equal(a, b) for a, b in zip(before, tensors_of(net(**sample)), strict=True))
    report = surgery.coverage(net, sample)
    sites = [site for site in (*report.sites, *report.outside) if site.calls]
    row["calls"], row["seen"] = sum(calls.counts.values()), sum(n for site in sites for _, n in site.kernels)
    counts = report.counts()
    if not counts:
        return
    target = max(counts, key=lambda spec: counts[spec])
    state = {key: value.clone() for key, value in net.state_dict().items()}
    swap = surgery.swap(net, {surgery.by_activation(target): "silu" if target.startswith("gelu") else "gelu"}, sample)
    with torch.no_grad():
        moved = tensors_of(net(**sample))
    swap.undo()
    with torch.no_grad():
        after = tensors_of(net(**sample))
    same = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    row["target"], row["swapped_calls"] = target, counts[target]
    row["moved"] = not all(torch.equal(a, b) for a, b in zip(before, moved, strict=True))
    row["undone"] = (same or is_random) and all(
        torch.equal(value, state[key]) for key, value in net.state_dict().items()
    )


def largest_error(path: Path, net: nn.Module, sample: Mapping[str, Tensor], rows: int) -> float:
    """Return how far a file is from the module at a number of rows, in units of each output's largest value."""
    inputs = {name: t[torch.arange(rows) % len(t)] for name, t in sample.items()}
    inputs = {name: t + 0.1 * torch.randn_like(t) if t.is_floating_point() else t for name, t in inputs.items()}
    with torch.no_grad():
        expected = tensors_of(net(**inputs))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {value.name: inputs[value.name].numpy() for value in session.get_inputs()}
    errors = [0.0]
    for y, reference in zip(session.run(None, feed), expected, strict=True):
        if tuple(y.shape) != tuple(reference.shape) or (np.isnan(y) != reference.isnan().numpy()).any():
            return math.inf
        if reference.is_floating_point() and reference.numel():
            scale = float(reference.abs().nan_to_num().max()) or 1.0
            errors.append(float(np.nan_to_num(np.abs(y - reference.numpy())).max()) / scale)
    return max(errors)


def float32_error(net: nn.Module, sample: Mapping[str, Tensor]) -> float:
    """Return how far the module in float32 is from itself in float64, in units of the largest output."""
    exact = copy.deepcopy(net).double()
    with torch.no_grad():
        outputs = tensors_of(net(**sample))
        references = tensors_of(exact(**{n: t.double() if t.is_floating_point() else t for n, t in sample.items()}))
    pairs = [(y, r) for y, r in zip(outputs, references, strict=True) if r.is_floating_point() and r.numel()]
    return max(float((y - r).abs().max() / (r.abs().max() or 1)) for y, r in pairs)


def plain_export(net: nn.Module, sample: Mapping[str, Tensor], path: Path) -> None:
    """Export as the documentation of torch says, with a dynamic batch."""
    shapes = {name: {0: torch.export.Dim.DYNAMIC} for name in sample}
    torch.onnx.export(net, (), path, kwargs=dict(sample), dynamo=True, dynamic_shapes=shapes, verbose=False)


def measure(name: str) -> dict[str, Any]:
    """Return the row of one architecture; ``left_out`` says why there is none."""
    from lit_gelu.export import check_parity, export_onnx

    row: dict[str, Any] = {"name": name}
    try:
        net, sample = built(name)
        row["parameters"] = sum(p.numel() for p in net.parameters())
        if row["parameters"] > PARAMETERS:
            return {**row, "left_out": f"more than {PARAMETERS:,} parameters"}
        with torch.no_grad():
            outputs = tensors_of(net(**sample))
    except Exception as error:  # noqa: BLE001 - a small configuration may be none
        return {**row, "left_out": f"{type(error).__name__}: {error}"[:300]}
    if not sample or not all(bool(t.isfinite().all()) for t in outputs if t.is_floating_point()):
        return {**row, "left_out": "no sample, or outputs that are not finite"}
    attempt(row, "swap", lambda: swap_and_undo(row, net, sample))
    with tempfile.TemporaryDirectory() as folder:
        ours, plain = Path(folder, "ours.onnx"), Path(folder, "plain.onnx")
        with quiet():
            state = {key: value.clone() for key, value in net.state_dict().items()}
            exports: list[tuple[str, Callable[[], Any]]] = [
                ("plain", lambda: plain_export(net, sample, plain)),
                ("ours", lambda: export_onnx(net, ours, sample)),
            ]
            for what, export in exports if len(name) % 2 else reversed(exports):  # the first fills torch's caches
                with measured(row, what):
                    attempt(row, what, export)
            row["unchanged"] = all(torch.equal(value, state[key]) for key, value in net.state_dict().items())
            row["own_error"] = attempt(row, "float64", lambda: float32_error(net, sample))
            for what, path in (("plain", plain), ("ours", ours)):
                if path.exists():
                    run = functools.partial(largest_error, path, net, sample)
                    row[f"{what}_errors"] = {
                        n: attempt(row, f"{what}_run", functools.partial(run, n)) for n in (2, 1, 3)
                    }
            if ours.exists():
                with measured(row, "parity"):
                    report = attempt(row, "parity", lambda: check_parity(net, ours, input_sample=sample, strict=False))
                if report is not None:
                    row["parity"] = report.passed
                    row["reasons"] = [*report.reasons] if not report.passed else []
    return row


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{name}, one thread"


def _in_a_process(name: str) -> Row:
    """Measure an architecture in a copy of this process: its limits and its end are its own."""
    end, start = os.pipe()
    if not (child := os.fork()):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1), os.dup2(sink, 2)
        resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTES * 2**30, resource.RLIM_INFINITY))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        try:
            row = measure(name)
        except Exception:  # noqa: BLE001 - what no attempt expected
            row = {"name": name, "left_out": traceback.format_exc()[-600:]}
        with os.fdopen(start, "w") as pipe:
            pipe.write(json.dumps(row))
        os._exit(0)
    os.close(start)
    with os.fdopen(end) as pipe:
        line = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if line:
        return dict(json.loads(line))
    ended = f"more than {SECONDS} processor seconds" if status in _OUT_OF_TIME else f"the process ended ({status})"
    return {"name": name, "left_out": ended}


def prepare() -> None:
    """Import what all need, and translate a small net both ways, so that no architecture pays for it."""
    from lit_gelu.export import export_onnx

    net = nn.Sequential(nn.Linear(4, 4), nn.GELU()).eval()
    with tempfile.TemporaryDirectory() as folder, quiet():
        export_onnx(net, Path(folder, "ours.onnx"), torch.zeros(2, 4))
        plain_export(net, {"input": torch.zeros(2, 4)}, Path(folder, "plain.onnx"))
    for name in ("transformers.bert", "timm.test_vit"):
        built(name)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch's exporter prints and warns of to itself."""
    sink = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
        warnings.simplefilter("ignore")
        yield


def write(record: dict[str, Any]) -> None:
    """Write the record, a line an architecture, in the order of their names."""
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(record["rows"].items()))
    rest = {name: value for name, value in record.items() if name != "rows"}
    RECORD.write_text(f'{json.dumps(rest)[:-1]}, "rows": {{\n{rows}\n}}}}\n')


def rows_of(record: dict[str, Any]) -> list[Row]:
    """Return the rows of architectures that could be built."""
    return [row for row in record["rows"].values() if "left_out" not in row]


def is_exported(row: Row, what: str) -> bool:
    """Return whether an exporter wrote a file."""
    return f"{what}_errors" in row


def is_right(row: Row, what: str) -> bool:
    """Return whether a file gives the module's outputs at two, one and three rows."""
    errors, limit = row.get(f"{what}_errors", {}), max(RIGHT, FACTOR * (row.get("own_error") or 0.0))
    return bool(errors) and all(error is not None and error <= limit for error in errors.values())


def _of(rows: list[Row], count: int) -> str:
    return f"{count} of {len(rows)}"


def _median(rows: list[Row], what: str) -> str:
    return f"{statistics.median(row[what] for row in rows):.0f}" if rows else ""


def summary(record: dict[str, Any]) -> list[list[str]]:
    """Return what the record says of each library, a line a figure."""
    parts = [[row for row in rows_of(record) if row["name"].startswith(f"{name}.")] for name in LIBRARIES]
    columns = [_column(rows) for rows in (*parts, rows_of(record))]
    return [["", *LIBRARIES, "all"], *([what, *(column[what] for column in columns)] for what in columns[0])]


def _column(rows: list[Row]) -> dict[str, str]:
    """Return the figures of a library, by what they are about."""
    swapped = [row for row in rows if "undone" in row]
    ours, plain = ([row for row in rows if is_exported(row, what)] for what in ("ours", "plain"))
    ratios = [row["ours_seconds"] / row["plain_seconds"] for row in ours if is_exported(row, "plain")]
    seen, calls = (sum(row.get(what, 0) for row in rows) for what in ("seen", "calls"))
    alarms = [row for row in ours if row.get("parity") is False and is_right(row, "ours")]
    drops = [row for row in ours if row.get("parity") is True and not is_right(row, "ours")]
    return {
        "calls of activations found": f"{seen:,} of {calls:,}",
        "swapped, and undone to the bit": _of(swapped, sum(row["undone"] for row in swapped)),
        "of these, the outputs moved": _of(swapped, sum(row["moved"] for row in swapped)),
        "exported by lit-gelu": _of(rows, len(ours)),
        "exported by `torch.onnx.export`": _of(rows, len(plain)),
        "right at one, two and three rows, lit-gelu": _of(ours, sum(is_right(row, "ours") for row in ours)),
        "the same, `torch.onnx.export`": _of(plain, sum(is_right(row, "plain") for row in plain)),
        "right, and refused by `check_parity`": str(len(alarms)),
        "wrong, and passed by it": str(len(drops)),
        "processor seconds over torch's, median": f"{statistics.median(ratios):.2f}" if ratios else "",
        "the same, worst": f"{max(ratios):.2f}" if ratios else "",
        "megabytes at the peak beside the model, median, lit-gelu": _median(ours, "ours_megabytes"),
        "and `torch.onnx.export`": _median(plain, "plain_megabytes"),
    }


def failures(record: dict[str, Any]) -> list[list[str]]:
    """Return the architectures that fail, with whether torch exports them and the reason."""
    lines = []
    for row in rows_of(record):
        reason = row.get("ours_error") or row.get("swap_error") or row.get("parity_error")
        if reason is None and is_exported(row, "ours") and not is_right(row, "ours"):
            reason = f"outputs are off: {row['ours_errors']}"
        if reason is None and row.get("parity") is False:
            reason = f"parity: {'; '.join(row['reasons'])}"
        if reason is not None:
            lines.append([row["name"], "yes" if is_exported(row, "plain") else "no", " ".join(reason.split())[:150]])
    return lines


def main(words: Sequence[str]) -> None:
    """Measure architectures and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="of names; default: all that the record lacks")
    parser.add_argument("--again", action="store_true", help="those in the record too")
    options = parser.parse_args(words)
    logging.disable(logging.WARNING)
    prepare()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"versions": {}, "rows": {}}
    names = [*names_of_transformers(), *names_of_timm(), *(f"torchvision.{name}" for name in TORCHVISION)]
    names.sort(key=lambda name: hashlib.sha256(name.encode()).digest())  # a record of some is a sample of all
    for name in names:
        chosen = any(part in name for part in options.parts) if options.parts else True
        if not chosen or (name in record["rows"] and not options.again):
            continue
        row = record["rows"][name] = _in_a_process(name)
        libraries = ("lit-gelu", "torch", "torchvision", "timm", "transformers", "onnxscript")
        record["versions"] = {library: importlib.metadata.version(library) for library in libraries}
        record["versions"]["onnxruntime"] = onnxruntime.__version__  # of one of several distributions
        record["machine"] = _processor()
        write(record)
        print(name, row.get("left_out") or {k: v for k, v in row.items() if k not in {"name", "reasons"}}, flush=True)
    for cells in (*summary(record), *failures(record)):
        print("  ".join(cell.ljust(24) for cell in cells).rstrip())


if __name__ == "__main__":
    main(sys.argv[1:])
