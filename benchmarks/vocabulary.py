"""Memory and time of a product with the Hessian of a language model of 124 million parameters and 50,257 words.

    python benchmarks/vocabulary.py               GPT-2 of transformers, random weights, 4 sequences of 256 tokens
    python benchmarks/vocabulary.py --tokens 512 --rows 2

Each way in a process of its own: as torch differentiates it; in chunks (`lit_gelu.curvature.loss.vocabulary`), which is
what `LossCurvatureMonitor` does; and a sequence at a time, as batches of which no graph is kept
(`ProductBudget(keep_graphs=False)`). Peaks are of the process's memory above what model and batch take.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import time
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "65536")  # so that what torch frees is no longer the process's

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def _memory(key: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{key}:"))


def measure(in_chunks: bool, at_once: bool, rows: int, tokens: int) -> dict[str, float]:
    """Return megabytes, seconds, and a number that tells the product."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from lit_gelu.curvature.loss import hessian_operator, operators

    if not in_chunks:
        operators.ChunkedCrossEntropy = contextlib.nullcontext
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(use_cache=False)).eval()
    ids = torch.randint(0, 50257, (rows, tokens))
    before = _memory("VmRSS")
    closures = [partial(lambda part: model(part, labels=part).loss, part) for part in ids.split(rows if at_once else 1)]
    with sdpa_kernel(SDPBackend.MATH):
        start = time.perf_counter()
        with hessian_operator(closures, dict(model.named_parameters()), keep_graphs=at_once) as hessian:
            recorded = time.perf_counter()
            vector = torch.randn(hessian.size, generator=torch.Generator().manual_seed(1))
            product = hessian(vector)
            ended = time.perf_counter()
    return {
        "peak_megabytes": round(_memory("VmHWM") - before),
        "recording_seconds": round(recorded - start, 1),
        "product_seconds": round(ended - recorded, 1),
        "along": float(vector.double() @ product.double()),
    }


def main() -> None:
    """Measure both ways, and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=256)
    options = parser.parse_args()
    ways = {"as torch does": (False, True), "in chunks": (True, True), "a sequence at a time": (True, False)}
    for name, way in ways.items():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(name, json.dumps(pool.apply(measure, (*way, options.rows, options.tokens))), flush=True)


if __name__ == "__main__":
    main()
