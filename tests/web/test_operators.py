"""Which operators onnxruntime-web has: every lowering runs in WebAssembly and WebGPU, and agrees with float64."""

import numpy as np
import pytest
import torch
import web_pages
from torch import nn

from lit_gelu import activations
from lit_gelu.export import export_onnx

pytestmark = pytest.mark.full

COMMON = (
    "gelu", "gelu_tanh", "gelu_sigmoid", "gaussian_gelu(sigma=0.5)", "silu", "elu", "mish", "softplus", "hard_swish",
    "relu",
)  # fmt: skip
WITHOUT_WEBGPU = ("selu", "celu(alpha=2.0)")  # WebGPU has neither operator: files of their own show it
FILES = {  # lowering and activations by file
    "native": ("native", COMMON),
    "primitives": ("primitives", COMMON + WITHOUT_WEBGPU),
    "contrib": ("contrib", COMMON),
    "selu": ("native", WITHOUT_WEBGPU[:1]),
    "celu": ("native", WITHOUT_WEBGPU[1:]),
}
RUN = """
const [names, backend] = args;
const runtime = await import(`/ort/ort.${backend}.min.mjs`);
runtime.env.wasm.wasmPaths = `${location.origin}/ort/`;
const found = {};
for (const name of names) {
  const options = { executionProviders: [backend], logSeverityLevel: 4 };
  const strict = { ...options, extra: { session: { disable_cpu_ep_fallback: backend === "webgpu" ? "1" : "0" } } };
  let whole = true;
  const url = `/operators/${name}.onnx`;
  const session = await runtime.InferenceSession.create(url, strict).catch(() => {
    whole = false;
    return runtime.InferenceSession.create(url, options);
  });
  const input = new Float32Array(await (await fetch(`/operators/${name}.bin`)).arrayBuffer());
  const shape = [64, input.length / 4096, 64];
  const outputs = await session.run({ [session.inputNames[0]]: new runtime.Tensor("float32", input, shape) });
  found[name] = [whole, Array.from(outputs[session.outputNames[0]].data)];
  await session.release();
}
return found;
"""


class SideBySide(nn.Module):
    """Each activation on a slice of its own, so that no two of them share what a runtime would merge."""

    def __init__(self, specs):
        super().__init__()
        self.activations = nn.ModuleList(activations.create(spec) for spec in specs)

    def forward(self, x):
        return torch.stack([f(x[:, i]) for i, f in enumerate(self.activations)], dim=1)


def inputs(count):
    """Return values where activations bend, and some at which exponentials overflow, once for each activation."""
    far = torch.tensor([20.0, 50.0, 88.0, 100.0, 1e4])
    values = torch.cat([torch.linspace(-12, 12, 4096 - 2 * len(far)), far, -far]).reshape(64, 1, 64)
    return values.expand(-1, count, -1).contiguous()


@pytest.fixture(scope="session")
def files(digits):
    """Write the files into the site."""
    folder = digits[1] / "site" / "operators"
    folder.mkdir(exist_ok=True)
    for name, (lowering, specs) in FILES.items():
        values = inputs(len(specs))
        values.numpy().tofile(folder / f"{name}.bin")
        export_onnx(SideBySide(specs).eval(), folder / f"{name}.onnx", values[:2], lowering=lowering)


@torch.no_grad()
def breaches(results):
    """Return what is farther from float64 than twice PyTorch's float32 is, where that is above 1e-5."""
    far = []
    for name, (_, specs) in FILES.items():
        outputs = np.reshape(results[name][1], (64, len(specs), 64))
        for i, spec in enumerate(specs):
            values = inputs(1)[:, 0]
            single = activations.create(spec)(values).double().numpy()
            exact = activations.create(spec).double()(values.double()).numpy()
            bend = np.abs(exact[values.abs() <= 12]).max()
            scale = np.maximum(np.abs(exact), bend)  # a value of 1e4 shall not hide an error where the curve bends
            error = (np.abs(outputs[:, i] - exact) / scale).max()
            if not error <= max(1e-5, 2 * (np.abs(single - exact) / scale).max()):
                far.append((name, spec, error))
    return far


def test_webassembly(page, files):
    assert breaches(page.run(RUN, list(FILES), "wasm")) == []


def test_webgpu(digits, files):
    with web_pages.chromium(*web_pages.SOFTWARE_GPU) as page:
        page.open(digits[0])
        if not page.run("return Boolean(await navigator.gpu?.requestAdapter())"):
            pytest.skip("Chromium offers no WebGPU adapter here, not even its software one")
        results = page.run(RUN, list(FILES), "webgpu")
    assert breaches(results) == []
    assert {name for name, (on_gpu, _) in results.items() if not on_gpu} == {"selu", "celu"}
