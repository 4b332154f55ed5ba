"""`tune`: what it keeps is faster and right, lies beside the file, and is used there and nowhere else."""

import gc
import json
import pickle
import shutil
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from export_cases import gelu_net, gelu_net_by_hand

from lit_gelu.export import ModelFileError, ModelInputError, OnnxPredictor, ProviderError, export_onnx
from lit_gelu.export.runtime import CPU, CUDA, open_session, tuning, tuning_file
from lit_gelu.export.runtime.engine import TuningFileWarning
from lit_gelu.export.runtime.knobs import Knob, cpu_knobs, cuda_knobs
from lit_gelu.export.runtime.model_file import ModelFile, read_model_file
from lit_gelu.export.runtime.settings import ACCEPTED
from lit_gelu.export.runtime.tuning import relative_error, tune

LEVEL = onnxruntime.GraphOptimizationLevel
EXTENDED = Knob("graph_optimization_level", ("extended", "basic"))


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
def basic_is_faster(monkeypatch):
    """Made-up times: whatever is called basic takes half of the time, and so does the best of the end."""
    times = {"untuned": 1.0, "'basic'": 0.5, "best": 0.5}

    def made_up(calls, device, **options):
        for call in calls.values():
            call()
        return {name: [times.get(name, 0.9)] * 5 for name in calls}

    monkeypatch.setattr(tuning, "interleaved", made_up)


def level_of(predictor):
    return predictor.session.get_session_options().graph_optimization_level


def test_a_real_search_on_this_machine(path):
    """Whatever it chooses, the tuned file computes what float64 numpy computes, and every value was tried."""
    report = tune(path, reference=gelu_net(), batch_size=8, seconds=0.3)
    knobs = cpu_knobs(read_model_file(path), tuning_file.cores())
    assert len(report.trials) == sum(len(knob.values) for knob in knobs)
    assert all(trial.ratio is not None and trial.error < 1e-6 for trial in report.trials)
    assert (report.choice.ratio <= 0.98) == bool(report.choice.settings)
    predictor = OnnxPredictor(path)
    assert predictor.tuning == replace(report.choice, settings=predictor.tuning.settings)
    x = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    assert np.abs(predictor(x) - gelu_net_by_hand(gelu_net(), x, "none")).max() < 2e-6
    assert str(report.choice) in str(report)


def test_the_choice_is_kept_used_and_said(path, basic_is_faster, caplog):
    report = tune(path, knobs=[EXTENDED])
    assert (dict(report.choice.settings), report.choice.ratio) == ({"graph_optimization_level": "basic"}, 0.5)
    assert [trial.verdict for trial in report.trials] == ["faster", "faster"]
    assert report.path.name == "net.onnx.tuning.json"
    caplog.set_level("INFO")
    predictor = OnnxPredictor(path)
    assert level_of(predictor) == LEVEL.ORT_ENABLE_BASIC
    assert "tuned: graph_optimization_level=basic: 0.50 of the untuned time" in repr(predictor)
    assert "runs as tuned: graph_optimization_level=basic" in caplog.text


def test_what_the_caller_says_comes_first(path, basic_is_faster):
    tune(path, knobs=[EXTENDED])
    options = onnxruntime.SessionOptions()
    for predictor in (OnnxPredictor(path, tuning=False), OnnxPredictor(path, sess_options=options)):
        assert (predictor.tuning, level_of(predictor)) == (None, LEVEL.ORT_ENABLE_ALL)
    assert level_of(OnnxPredictor(path, [CPU])) == LEVEL.ORT_ENABLE_BASIC


def test_a_predictor_that_is_tuned_runs_with_it(path, basic_is_faster):
    predictor = OnnxPredictor(path)
    predictor.tune(torch.randn(3, 6), seconds=0.0, save=False)
    assert level_of(predictor) == LEVEL.ORT_ENABLE_BASIC
    assert not tuning_file.tuning_path(path).exists()


def test_what_was_tuned_takes_the_place_of_the_session_options(path, basic_is_faster):
    """Also in another process, which opens the file by what is pickled."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = LEVEL.ORT_DISABLE_ALL
    predictor = OnnxPredictor(path, [CPU], options)
    assert level_of(predictor) == LEVEL.ORT_DISABLE_ALL
    predictor.tune(torch.randn(3, 6), seconds=0.0, save=False)
    for opened in (predictor, pickle.loads(pickle.dumps(predictor))):
        assert level_of(opened) == LEVEL.ORT_ENABLE_BASIC
    assert predictor.__getstate__()["sess_options"] is None


@pytest.mark.parametrize(("confirmed", "chosen"), [(0.97, True), (0.99, False), (1.4, False)])
def test_the_confirmation_takes_a_choice_back(path, monkeypatch, confirmed, chosen):
    """Half of the time in the search; beside the untuned session at the end, what is given here."""
    times = {"untuned": 1.0, "'basic'": 0.5, "best": confirmed}
    monkeypatch.setattr(
        tuning, "interleaved", lambda calls, *_, **__: {name: [times.get(name, 0.9)] * 5 for name in calls}
    )
    report = tune(path, knobs=[EXTENDED], save=False)
    assert [trial.verdict for trial in report.trials] == ["faster", "faster"]
    assert dict(report.choice.settings) == ({"graph_optimization_level": "basic"} if chosen else {})
    assert report.choice.ratio == (confirmed if chosen else 1.0)


def test_settings_that_break_parity_are_rejected_however_fast(path, exported, basic_is_faster, monkeypatch):
    """At the level basic another file runs, with the tanh form: off by up to 4.7e-4 in each activation."""

    def opened(given, *arguments, tuning, **options):
        wrong = tuning and tuning.settings.get("graph_optimization_level") == "basic"
        return OnnxPredictor(exported / "tanh.onnx" if wrong else given, *arguments, tuning=tuning, **options)

    monkeypatch.setattr(tuning, "OnnxPredictor", opened)
    for reference in (None, gelu_net(), gelu_net().eval()(made := torch.randn(32, 6)).detach()):
        given = made if isinstance(reference, torch.Tensor) else None
        report = tune(path, given, reference=reference, knobs=[EXTENDED], save=False)
        rejected = [trial for trial in report.trials if trial.settings["graph_optimization_level"] == "basic"]
        assert [trial.ratio for trial in rejected] == [None]
        assert rejected[0].error > 1e-4
        assert rejected[0].verdict.startswith("rejected: error")
        assert dict(report.choice.settings) == {"graph_optimization_level": "extended"} or not report.choice.settings


def test_settings_that_do_not_run_are_rejected(path, basic_is_faster):
    report = tune(path, knobs=[Knob("batch_buckets", ((4,),))], save=False)
    assert "are CUDA graphs" in report.trials[0].verdict
    assert dict(report.choice.settings) == {}


def test_choices_of_other_machines_and_releases_are_not_used_but_kept(path, basic_is_faster, monkeypatch):
    report = tune(path, knobs=[EXTENDED])
    monkeypatch.setattr(tuning_file, "processor", lambda: "another")
    assert OnnxPredictor(path).tuning is None
    tune(path, knobs=[EXTENDED])
    monkeypatch.setattr(onnxruntime, "__version__", "99.0")
    assert OnnxPredictor(path).tuning is None
    content = json.loads(report.path.read_text())
    assert len({entry["key"]["device"] for entry in content["choices"]}) == 2


def test_a_choice_for_another_export_is_not_used(path, exported, basic_is_faster):
    tune(path, knobs=[EXTENDED])
    shutil.copy(exported / "tanh.onnx", path)
    assert OnnxPredictor(path).tuning is None


DAMAGED = [b"", b"{}", b"[1]", b'{"format": 9, "model_sha256": "", "choices": []}', b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_of_choices_is_no_reason_not_to_run(path, content, basic_is_faster):
    file = tuning_file.tuning_path(path)
    file.write_bytes(content)
    message = r"runs untuned.*net.onnx.tuning.json.*Delete it, run tune\(\) again.*tuning=False"
    with pytest.warns(TuningFileWarning, match=message):
        predictor = OnnxPredictor(path)
    assert predictor.tuning is None
    assert len(predictor(torch.zeros(2, 6))) == 2
    OnnxPredictor(path, tuning=False)
    with pytest.raises(ModelFileError, match="Delete it"):  # nothing is measured that could not be kept
        tune(path, knobs=[EXTENDED])
    assert file.read_bytes() == content
    assert tune(path, knobs=[EXTENDED], save=False).path is None


@pytest.mark.parametrize(
    "settings",
    [{"optimized_model_filepath": "/tmp/x"}, {"user_compute_stream": "1"}, {"intra_op_num_threads": "2"},
     {"graph_optimization_level": "most"}, {"graph_optimization_level": []}, {"intra_op_num_threads": 2**40},
     {"intra_op_num_threads": 1_000_000}, {"intra_op_num_threads": -1}, {"intra_op_num_threads": True},
     {"prefer_nhwc": 2}, {"cudnn_conv_algo_search": "BEST"}, {"cudnn_conv_algo_search": []},
     {"batch_buckets": [0]}, {"batch_buckets": ["4"]}, {"batch_buckets": [2**40]}, {"disabled_optimizers": [1]},
     {"enable_mem_pattern": 1}],
)  # fmt: skip
def test_a_file_of_choices_cannot_set_anything_else(path, basic_is_faster, settings):
    file = tune(path, knobs=[EXTENDED]).path
    content = json.loads(file.read_text())
    content["choices"][0]["settings"] = settings
    file.write_text(json.dumps(content))
    with pytest.warns(TuningFileWarning, match=next(iter(settings))):
        assert OnnxPredictor(path).tuning is None


@pytest.mark.parametrize(
    "entry", [{"ratio": "x"}, {"batch_size": None}, {"error": True}, {"settings": []}, {"key": {}}, {"more": 1}]
)
def test_an_entry_that_is_none(path, basic_is_faster, entry):
    file = tune(path, knobs=[EXTENDED]).path
    content = json.loads(file.read_text())
    content["choices"][0] |= entry
    file.write_text(json.dumps(content))
    with pytest.warns(TuningFileWarning, match="holds an entry that tune.* does not write"):
        assert OnnxPredictor(path).tuning is None


def test_a_folder_in_the_place_of_the_choices(path):
    tuning_file.tuning_path(path).mkdir()
    with pytest.warns(TuningFileWarning, match="Is a directory"):
        assert OnnxPredictor(path).tuning is None
    with pytest.raises(ModelFileError, match="Is a directory"):
        tune(path)


def test_inputs_that_cannot_be_made_up(tmp_path):
    net = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.GELU())
    export_onnx(net, tmp_path / "net.onnx", torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ModelInputError, match=r"tensor\(int64\): values cannot be made up for it, give inputs"):
        tune(tmp_path / "net.onnx")
    tune(tmp_path / "net.onnx", torch.ones(2, 3, dtype=torch.int64), knobs=[], save=False)


def test_a_reference_of_another_shape(path):
    with pytest.raises(ModelInputError, match="Give the module that the file was exported from"):
        tune(path, reference=np.zeros((32, 7)))


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
def test_relative_error(y, exact, error):
    assert relative_error([np.array(y)], [np.array(exact)]) == error


def test_what_is_tried_on_cuda(path):
    conv = ModelFile(path, {"": 20}, {"Conv": 1}, sixteen_bit=False, external=())
    names = [knob.name for knob in cuda_knobs(conv, 8, allow_tf32=True)]
    assert names == ["use_tf32", "layout and CUDA graph", "fuse_conv_bias", "cudnn_conv_algo_search"]
    (both,) = [knob for knob in cuda_knobs(conv, 8) if knob.name == "layout and CUDA graph"]
    nhwc, graph = {"prefer_nhwc": 1}, {"batch_buckets": (8,)}
    assert [both.settings(value) for value in both.values] == [nhwc, graph, nhwc | graph]
    assert [knob.needs for knob in cuda_knobs(conv, 8) if knob.name == "fuse_conv_bias"] == [("prefer_nhwc", 1)]
    assert "use_tf32" not in [knob.name for knob in cuda_knobs(conv, 8)]
    half = replace(conv, sixteen_bit=True)  # there the option takes the tensor cores away
    assert "use_tf32" not in [knob.name for knob in cuda_knobs(half, 8, allow_tf32=True)]
    dense = replace(conv, operators={"Gemm": 2})
    assert [knob.name for knob in cuda_knobs(dense, 8)] == ["CUDA graph"]
    quick = replace(conv, operators={"MatMul": 2, "Sigmoid": 1, "Mul": 1})
    assert cuda_knobs(quick, 8)[-1] == Knob("disabled_optimizers", (("MatMulAddFusion",), ("QuickGeluFusion",)))
    every = [*cuda_knobs(conv, 8, allow_tf32=True), *cuda_knobs(quick, 8), *cpu_knobs(conv, 8)]
    assert {name for knob in every for value in knob.values for name in knob.settings(value)} <= set(ACCEPTED)


def test_layout_and_graph_are_tried_together_and_what_is_refused_is_reported(path, monkeypatch):
    """Each is faster by itself; onnxruntime refuses the pair for some files."""

    def opened(given, *arguments, tuning, **options):
        wanted = dict(tuning.settings) if tuning else {}
        if {"prefer_nhwc", "batch_buckets"} <= wanted.keys():
            raise ProviderError("one or the other")
        return OnnxPredictor(given, *arguments, tuning=False)

    nhwc, graph = {"prefer_nhwc": 1}, {"batch_buckets": (4,)}
    times = {"untuned": 1.0, repr(nhwc): 0.8, repr(graph): 0.5, "best": 0.5}
    monkeypatch.setattr(tuning, "OnnxPredictor", opened)
    monkeypatch.setattr(tuning, "interleaved", lambda calls, *_, **__: {name: [times[name]] * 5 for name in calls})
    report = tune(path, knobs=[Knob("layout and CUDA graph", (nhwc, graph, nhwc | graph))], save=False)
    assert {str(dict(trial.settings)): trial.verdict for trial in report.trials} == {
        str(nhwc | graph): "rejected: one or the other",
        str(nhwc): "faster",
        str(graph): "faster",
    }
    assert dict(report.choice.settings) == graph
    assert "prefer_nhwc=1, batch_buckets=(4,): rejected: one or the other" in str(report)


@pytest.mark.skipif(CUDA not in onnxruntime.get_available_providers(), reason="this onnxruntime has no CUDA provider")
def test_why_nhwc_is_rejected_is_reported(path, basic_is_faster, monkeypatch):
    """What a session says of it, here for convolutions in bfloat16."""
    model = replace(read_model_file(path), operators={"Conv": 1}, bfloat16=True)

    def opened(given, *arguments, tuning, **options):
        if tuning and "prefer_nhwc" in tuning.settings:
            open_session(given, [(CUDA, tuning.settings)], model=model)
        return OnnxPredictor(given, *arguments, tuning=tuning, **options)

    monkeypatch.setattr(tuning, "OnnxPredictor", opened)
    report = tune(path, knobs=[Knob("prefer_nhwc", (1,)), EXTENDED], save=False)
    assert report.trials[0].verdict.startswith("rejected: prefer_nhwc=1: onnxruntime's CUDA provider has no bfloat16")
    assert {trial.verdict for trial in report.trials[1:]} == {"faster"}


def test_every_choice_is_opened_once_and_closed_when_it_is_not_the_fastest(path, monkeypatch):
    """Sessions on a GPU hold memory; only the untuned one and the fastest so far stay open."""
    opened, alive, open_now = [], weakref.WeakSet(), []

    def noted(given, *arguments, tuning, **options):
        predictor = OnnxPredictor(given, *arguments, tuning=tuning, **options)
        alive.add(predictor)
        opened.append(str(dict(tuning.settings)) if tuning else "plain")
        return predictor

    def made_up(calls, device, **options):
        gc.collect()
        open_now.append((len(alive), len(calls)))
        return {name: [0.5 if name in ("'basic'", "best") else 1.0] * 5 for name in calls}

    monkeypatch.setattr(tuning, "OnnxPredictor", noted)
    monkeypatch.setattr(tuning, "interleaved", made_up)
    pattern = Knob("enable_mem_pattern", (False,))
    tune(path, knobs=[EXTENDED, pattern], reference=gelu_net(), save=False)
    assert len(set(opened)) == len(opened) == 5  # as given, untuned, two levels, one pattern
    assert open_now == [(3, 3), (3, 2), (2, 2)]


@pytest.mark.gpu
def test_a_real_search_on_cuda(path):
    report = tune(path, reference=gelu_net(), batch_size=16, seconds=1.0)
    assert report.choice.error < 1e-5
    x = torch.randn(16, 6, device="cuda")
    torch.testing.assert_close(OnnxPredictor(path)(x), gelu_net().eval().cuda()(x), rtol=0, atol=1e-5)
