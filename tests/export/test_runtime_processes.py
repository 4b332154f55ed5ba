"""A predictor in threads, in other processes and in a Trainer."""

import copy
import multiprocessing
import os
import pickle
import threading

import numpy as np
import onnxruntime
import pytest
import torch
from child_processes import PATIENCE, run_python
from cuda_nets import VisionTransformer, encoder
from export_cases import gelu_net
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.export.runtime import CPU


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("processes") / "net.onnx"
    export_onnx(gelu_net(), path, torch.zeros(2, 6))
    return path


def in_ten_threads(call, inputs):
    """Every thread computes every input, all at once."""
    results, start = {}, threading.Barrier(10, timeout=PATIENCE)

    def work(number):
        start.wait()
        results[number] = [call(x) for _ in range(5) for x in inputs]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(results) == 10
    return results.values()


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_ten_threads_get_the_same(path, kind):
    predictor = OnnxPredictor(path, [CPU])
    inputs = [torch.full((rows, 6), float(rows)) for rows in (1, 2, 3, 8, 9)]
    if kind == "arrays":
        inputs = [x.numpy() for x in inputs]
    alone = [predictor(x) for x in inputs] * 5
    for results in in_ten_threads(predictor, inputs):
        for result, expected in zip(results, alone, strict=True):
            np.testing.assert_array_equal(result, expected)


def test_pickled_with_its_options(path):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    predictor = OnnxPredictor(path, [CPU], options)
    x = torch.randn(3, 6)
    for other in (pickle.loads(pickle.dumps(predictor)), copy.deepcopy(predictor)):
        assert torch.equal(other(x), predictor(x))
        found = other.session.get_session_options()
        assert found.intra_op_num_threads == 1
        assert found.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        assert found.get_session_config_entry("session.intra_op.allow_spinning") == "0"


class Predicted(Dataset):
    """Rows through a predictor, which a worker process got by fork."""

    def __init__(self, predictor):
        self.predictor = predictor

    def __len__(self):
        return 6

    def __getitem__(self, index):
        row = self.predictor(torch.full((1, 6), float(index)))[0]
        return row, os.getpid(), self.predictor._engine.process  # where it was opened


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_in_the_workers_of_a_dataloader(path):
    """A session with several threads hangs in a forked process, where they are missing."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    predictor = OnnxPredictor(path, [CPU], options)
    expected = torch.stack([Predicted(predictor)[index][0] for index in range(6)])
    loader = DataLoader(Predicted(predictor), 3, num_workers=2, multiprocessing_context="fork", timeout=PATIENCE)
    rows, processes, opened = zip(*loader, strict=True)
    assert os.getpid() not in torch.cat(processes).tolist()
    assert torch.equal(torch.cat(opened), torch.cat(processes))
    assert predictor._engine.process == os.getpid()
    torch.testing.assert_close(torch.cat(rows), expected, rtol=0, atol=1e-6)


class Predicts(LightningModule):
    """A module whose prediction is an exported file's."""

    def __init__(self, path):
        super().__init__()
        self.predictor = OnnxPredictor(path)

    def predict_step(self, batch, batch_idx):
        return self.predictor(batch)


def test_in_predict_step(path):
    x = torch.randn(5, 6)
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    outputs = trainer.predict(Predicts(path), DataLoader(x, batch_size=2))
    torch.testing.assert_close(torch.cat(outputs), gelu_net().eval()(x).detach(), rtol=0, atol=1e-6)


_RUN = """
import sys
import numpy as np
from lit_gelu.export.runtime import OnnxPredictor

for path in sys.argv[1:]:
    predict = OnnxPredictor(path, ["CPUExecutionProvider"])
    (port,) = predict.ports.values()
    print(np.isfinite(predict(np.zeros([2 if isinstance(n, str) else n for n in port.shape], np.float16))).all())
"""


def test_a_float16_transformer_does_not_end_the_process(tmp_path):
    """onnxruntime 1.31 follows a null pointer in one of its optimisations on x86-64: another process tries it."""
    paths = [str(tmp_path / name) for name in ("encoder.onnx", "vit.onnx")]
    export_onnx(encoder().eval(), paths[0], torch.zeros(2, 5, 8), dtype="fp16")
    export_onnx(VisionTransformer().eval(), paths[1], torch.zeros(2, 3, 8, 8), dtype="fp16")
    assert run_python(_RUN, *paths).stdout.split() == ["True", "True"]


def test_pickled_in_one_folder_and_opened_in_another(path, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "net.onnx").write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path / "here")
    predictor = OnnxPredictor("net.onnx", [CPU])
    monkeypatch.chdir(tmp_path / "there")
    again = pickle.loads(pickle.dumps(predictor))
    assert again.path == tmp_path / "here" / "net.onnx"
    assert str(predictor.path) == "net.onnx"
