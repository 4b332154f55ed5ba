"""The exported file gives in the browser what it gives in Python: 1,000 digits in onnxruntime-web, in Chromium."""

import numpy as np
import pytest
import torch
import web_pages
from sklearn.datasets import load_digits

from lit_gelu.data import DigitsData, MNISTData
from lit_gelu.export import OnnxPredictor
from lit_gelu.tasks import MNISTClassifier

pytestmark = pytest.mark.full

RUN = """
const [url, backend, threads] = args;
const runtime = await import(`/ort/ort.${backend}.min.mjs`);
if (threads) runtime.env.wasm.numThreads = threads;
const { Model, softmax } = await import("/model.js");
const model = await Model.open(url, backend);
const pixels = new Uint8Array(await (await fetch("/pixels.bin")).arrayBuffer());
const logits = await model.logits(pixels);
await model.close();
return [logits.map((row) => Array.from(row)), logits.map(softmax), model.where, model.threads];
"""
CHOOSE = """
const list = document.getElementById("backend");
list.value = args[0];
list.dispatchEvent(new Event("change"));
while (list.disabled) await new Promise((done) => setTimeout(done, 20));
"""


def thousand_digits():
    return torch.from_numpy(load_digits().images[:1000].astype(np.uint8)).unsqueeze(1)


def browser_outputs(page, site, pixels, url="/model.onnx", backend="wasm", threads=0):
    (site / "pixels.bin").write_bytes(pixels.numpy().tobytes())
    logits, probabilities, where, used = page.run(RUN, url, backend, threads)
    return np.array(logits), np.array(probabilities), where, used


def check(outputs, folder, pixels, preprocessing):
    """Compare with onnxruntime in Python and with PyTorch, whose distance from float64 sets the limit."""
    logits, probabilities, *_ = outputs
    model = MNISTClassifier.load_from_checkpoint(folder / "classifier.ckpt", map_location="cpu", weights_only=True)
    model.eval()
    images = preprocessing(pixels)
    with torch.no_grad():
        single = model(images).double().numpy()
        double = model.double()(images.double())
    exact = double.numpy()
    python = OnnxPredictor(folder / "site" / "model.onnx", providers=["CPUExecutionProvider"])(pixels).numpy()
    assert logits.shape == (len(pixels), 10)
    classes = logits.argmax(axis=1)
    assert np.array_equal(classes, python.argmax(axis=1))
    assert np.array_equal(classes, single.argmax(axis=1))
    assert np.array_equal(classes, probabilities.argmax(axis=1))
    scale = np.abs(exact).max()
    limit = max(1e-5, 2 * np.abs(single - exact).max() / scale)
    assert np.abs(logits - exact).max() / scale <= limit
    # A probability changes by at most half the largest change of a logit: |dp/dz| sums to 2 p (1 - p).
    assert np.abs(probabilities - double.softmax(dim=1).numpy()).max() <= min(1e-4, limit * scale / 2)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_thousand_digits(page, digits, threads):
    _, folder = digits
    outputs = browser_outputs(page, folder / "site", thousand_digits(), threads=threads)
    assert outputs[2:] == ("WebAssembly", threads)  # threads take the isolation that the server's headers give
    check(outputs, folder, thousand_digits(), DigitsData().preprocessing())


@pytest.mark.realdata
def test_a_thousand_digits_of_mnist(browser, tmp_path):
    pixels = MNISTData().raw_test_inputs()[:1000]
    with web_pages.served(tmp_path, "--data", "mnist", "--epochs", "1") as address:
        browser.open(address)
        outputs = browser_outputs(browser, tmp_path / "site", pixels)
        check(outputs, tmp_path, pixels, MNISTData().preprocessing())
        right = 0
        for digit, strokes in web_pages.DIGITS.items():
            browser.element("clear").click()
            browser.draw(strokes)
            right += int(np.argmax(browser.bars())) == digit
        assert right >= 8
        assert browser.errors() == []


def test_webgpu(digits):
    address, folder = digits
    with web_pages.chromium(*web_pages.SOFTWARE_GPU) as page:
        page.open(address)
        if not page.run("return Boolean(await navigator.gpu?.requestAdapter())"):
            pytest.skip("Chromium offers no WebGPU adapter here, not even its software one")
        outputs = browser_outputs(page, folder / "site", thousand_digits(), backend="webgpu")
        check(outputs, folder, thousand_digits(), DigitsData().preprocessing())
        page.run(CHOOSE, "webgpu")
        assert "WebGPU, with parts of the graph" in page.element("where").text  # the bytes are cast on the CPU
        page.draw(web_pages.DIGITS[0])
        assert sum(page.bars()) == pytest.approx(1)
        assert page.errors() == []


def test_nothing_is_loaded_from_elsewhere(page, digits):
    address, _ = digits
    loaded = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert len(loaded) >= 5
    assert all(name.startswith((address, "data:")) for name in loaded)
    assert page.run("return crossOriginIsolated") is True
