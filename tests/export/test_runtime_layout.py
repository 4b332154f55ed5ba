"""A file that was exported for NHWC gets the provider's option wherever this package opens it, unless it is set."""

import pytest
import torch
from torch import nn

from lit_gelu.export import ModelFileError, export_onnx
from lit_gelu.export.runtime import session
from lit_gelu.export.runtime.model_file import read_model_file
from lit_gelu.export.runtime.providers import CPU, CUDA
from lit_gelu.export.runtime.tuning import candidates
from lit_gelu.export.serving import write_triton_repository


@pytest.fixture(scope="module", params=["nchw", "nhwc"])
def model(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("layout") / "net.onnx"
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU())
    export_onnx(net, path, torch.zeros(2, 3, 8, 8), target="ort-cuda", layout=request.param)
    return request.param == "nhwc", read_model_file(path)


@pytest.mark.parametrize("given", [{}, {"prefer_nhwc": 0}])
def test_a_session_has_it(model, given, monkeypatch):
    wanted, file = model
    opened = []

    def no_device(file, checked, *others):
        opened.append(checked)
        raise ModelFileError("there is no device")

    monkeypatch.setattr(session, "_open", no_device)
    monkeypatch.setattr(session, "_load_libraries", lambda provider: None)
    monkeypatch.setattr(session, "checked_providers", lambda providers, options: {CUDA: dict(options[0]), CPU: {}})
    with pytest.raises(ModelFileError):
        session.open_session(file.path, [CUDA, CPU], provider_options=[given, {}], model=file)
    expected = given if given or not wanted else {"prefer_nhwc": "1"}
    assert opened == [{CUDA: expected, CPU: {}}]


def test_tune_tries_the_other_layout(model):
    wanted, file = model
    tried = candidates(CUDA, file, 8)[0]
    assert {settings["prefer_nhwc"] for settings in tried if "prefer_nhwc" in settings} == {int(not wanted)}


def test_the_configuration_for_triton_has_it_on_a_gpu_alone(model, tmp_path):
    wanted, file = model
    for device in ("gpu", "cpu"):
        written = write_triton_repository(file.path, tmp_path, name=device, device=device)
        assert ("prefer_nhwc" in written.config) == (wanted and device == "gpu")
        assert "prefer_nhwc" not in "".join(written.notes)
