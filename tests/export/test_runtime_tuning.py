"""`tune`: what it keeps is faster and right, lies beside the file, and is used there and nowhere else."""

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from export_cases import gelu_net, gelu_net_by_hand

from lit_gelu.errors import ModelInputError
from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.export.runtime import CPU, CUDA, tuning, tuning_file
from lit_gelu.export.runtime.bench import relative_error
from lit_gelu.export.runtime.model_file import ModelFile
from lit_gelu.export.runtime.predictor import TuningFileWarning
from lit_gelu.export.runtime.tuning import candidates, tune

LEVEL = onnxruntime.GraphOptimizationLevel
LEVELS = [[{"graph_optimization_level": level} for level in ("extended", "basic")]]
BASIC = {"graph_optimization_level": "basic"}


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The same net with exact GELU and with the tanh form."""
    folder = tmp_path_factory.mktemp("tuning")
    for form in ("none", "tanh"):
        export_onnx(gelu_net(), folder / f"{form}.onnx", torch.zeros(2, 6), approximate=form)
    return folder


@pytest.fixture
def path(exported, tmp_path):
    return Path(shutil.copy(exported / "none.onnx", tmp_path / "net.onnx"))


@pytest.fixture
def made_up(monkeypatch):
    """Levels alone are tried, in made-up times: basic takes half of the time, and at the end what is given here."""

    def times(final=0.5, again=1.0):
        def interleaved(calls, device, **options):
            for call in calls.values():
                call()
            given = {tuning._BEST: 1.0, "": final, "again": again}
            return {name: [given.get(name, 0.5 if "basic" in name else 0.9)] * 5 for name in calls}

        monkeypatch.setattr(tuning, "interleaved", interleaved)
        monkeypatch.setattr(tuning, "candidates", lambda *_, **__: LEVELS)

    times()
    return times


def level_of(predictor):
    return predictor.session.get_session_options().graph_optimization_level


def test_a_real_search_on_this_machine(path):
    """Whatever it chooses, the tuned file computes what float64 numpy computes, and every value was tried."""
    report = tune(path, batch_size=8, seconds=0.3)
    groups = candidates(
        CPU, ModelFile(path, {}, {}, sixteen_bit=False, bfloat16=False, saturates=False, external=()), 8
    )
    assert len(report.trials) - sum(map(len, groups)) in (0, 2)  # the confirmation, if anything was faster
    assert all(trial.ratio is not None and trial.error < 1e-6 for trial in report.trials)
    assert (report.choice.ratio <= 0.98) == bool(report.choice.settings)
    predictor = OnnxPredictor(path)
    assert predictor.tuning == replace(report.choice, settings=predictor.tuning.settings)
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    assert np.abs(predictor(x) - gelu_net_by_hand(gelu_net(), x, "none")).max() < 2e-6


def test_the_choice_is_kept_beside_the_file_and_used_unless_the_caller_says_otherwise(path, made_up):
    report = tune(path)
    assert (dict(report.choice.settings), report.choice.ratio) == (BASIC, 0.5)
    assert [trial.verdict for trial in report.trials][:2] == ["faster", "faster"]
    assert report.trials[-1].verdict == "kept"
    assert report.path.name == "net.onnx.tuning.json"
    for predictor in (OnnxPredictor(path), OnnxPredictor(path, [CPU])):
        assert level_of(predictor) == LEVEL.ORT_ENABLE_BASIC
    for predictor in (
        OnnxPredictor(path, tuning=False),
        OnnxPredictor(path, sess_options=onnxruntime.SessionOptions()),
    ):
        assert (predictor.tuning, level_of(predictor)) == (None, LEVEL.ORT_ENABLE_ALL)


def test_a_predictor_that_is_tuned_runs_with_it_also_in_another_process(path, made_up):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVEL.ORT_DISABLE_ALL
    predictor = OnnxPredictor(path, [CPU], options)
    predictor.tune(torch.randn(3, 6), seconds=0.0, save=False)
    for opened in (predictor, pickle.loads(pickle.dumps(predictor))):
        assert level_of(opened) == LEVEL.ORT_ENABLE_BASIC
    assert not tuning_file.tuning_path(path).exists()


@pytest.mark.parametrize(
    ("final", "again", "chosen"),
    [
        (0.97, 1.0, True),
        (0.99, 1.0, False),
        (1.4, 1.0, False),
        (0.96, 1.03, False),
        (0.96, 0.97, False),
        (0.9, 1.03, True),
    ],
)
def test_the_confirmation_beside_two_untuned_sessions_takes_a_choice_back(path, made_up, final, again, chosen):
    made_up(final, again)
    report = tune(path, save=False)
    assert dict(report.choice.settings) == (BASIC if chosen else {})
    assert report.choice.ratio == (final if chosen else 1.0)


def test_settings_that_break_parity_are_rejected_however_fast(path, exported, made_up, monkeypatch):
    """At the level basic another file runs, with the tanh form: off by up to 4.7e-4 in each activation."""

    def opened(given, *arguments, tuning, **options):
        wrong = tuning and tuning.settings.get("graph_optimization_level") == "basic"
        return OnnxPredictor(exported / "tanh.onnx" if wrong else given, *arguments, tuning=tuning, **options)

    monkeypatch.setattr(tuning, "OnnxPredictor", opened)
    report = tune(path, save=False)
    (rejected,) = [trial for trial in report.trials if trial.settings == BASIC]
    assert (rejected.ratio, rejected.error > 1e-4) == (None, True)
    assert dict(report.choice.settings) in ({"graph_optimization_level": "extended"}, {})


def test_choices_of_other_machines_releases_and_exports_are_not_used(path, exported, made_up, monkeypatch):
    tune(path)
    monkeypatch.setattr(tuning_file, "processor", lambda: "another")
    assert OnnxPredictor(path).tuning is None
    tune(path)
    assert OnnxPredictor(path).tuning is not None
    monkeypatch.setattr(onnxruntime, "__version__", "99.0")
    assert OnnxPredictor(path).tuning is None
    monkeypatch.undo()
    shutil.copy(exported / "tanh.onnx", path)
    assert OnnxPredictor(path).tuning is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b'{"model_sha256": "", "choice": {"more": 1}}'])
def test_a_damaged_file_of_choices_sets_nothing_and_is_no_reason_not_to_run(path, content):
    tuning_file.tuning_path(path).write_bytes(content)
    with pytest.warns(TuningFileWarning):
        predictor = OnnxPredictor(path)
    assert predictor.tuning is None
    assert len(predictor(torch.zeros(2, 6))) == 2


def test_values_of_whole_numbers_are_not_made_up(tmp_path, made_up):
    net = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.GELU())
    export_onnx(net, tmp_path / "tokens.onnx", torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ModelInputError):
        tune(tmp_path / "tokens.onnx")
    assert tune(tmp_path / "tokens.onnx", torch.ones(2, 3, dtype=torch.int64), save=False).choice.batch_size == 2


@pytest.mark.parametrize(
    ("y", "exact", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([np.nan, 2.0], [1.0, 2.0], np.inf),
        ([np.inf, 2.0], [np.inf, 2.0], 0.0),
        ([np.inf, 2.0], [-np.inf, 2.0], np.inf),
        ([np.nan, 2.0], [np.nan, 2.0], 0.0),
        ([0.5, 0.0], [0.0, 0.0], 0.5),
        ([1.0], [1.0, 2.0], np.inf),
    ],
)
def test_the_error_is_a_share_of_the_largest_output(y, exact, error):
    assert relative_error([np.array(y)], [np.array(exact)]) == error


def test_what_is_tried_on_cuda(path):
    conv = ModelFile(path, {"": 20}, {"Conv": 1}, sixteen_bit=False, bfloat16=False, saturates=False, external=())
    dense = replace(conv, operators={"Gemm": 2})
    nhwc, graph = {"prefer_nhwc": 1}, {"batch_buckets": (8,)}
    assert candidates(CUDA, conv, 8)[0] == [nhwc, graph, nhwc | graph]
    assert candidates(CUDA, dense, 8) == [[graph]]


@pytest.mark.gpu
def test_a_real_search_on_cuda(path):
    report = tune(path, batch_size=16, seconds=1.0)
    assert report.choice.error < 1e-5
    x = torch.randn(16, 6, device="cuda")
    torch.testing.assert_close(OnnxPredictor(path)(x), gelu_net().eval().cuda()(x), rtol=0, atol=1e-5)
