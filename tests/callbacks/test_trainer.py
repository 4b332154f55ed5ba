"""Input samples are handed to a module as the Trainer hands it batches; names are as loggers take them."""

import pytest
import torch
from callback_helpers import SmallNet, collected_warnings, loader, quiet_trainer
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger
from torch.utils.data import DataLoader, IterableDataset

from lit_gelu.callbacks import ActivationCurvatureMonitor, ActivationSwap
from lit_gelu.callbacks.trainer import log_figures, log_texts


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "32-true"])
def test_in_the_dtype_that_the_precision_gives_the_module(tmp_path, precision):
    sample = torch.zeros(2, 6)
    model = SmallNet()
    model.example_input_array = sample
    swap = ActivationSwap({"activation:relu": "gelu"}, at_epoch=1)
    monitor = ActivationCurvatureMonitor(every_n_steps=1, input_sample="example_input_array")
    quiet_trainer(tmp_path, swap, monitor, max_epochs=2, precision=precision).fit(model, loader())
    assert isinstance(model.net[1], torch.nn.GELU)
    assert sample.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_mlflow_takes_the_names_of_numbered_calls(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = MLFlowLogger("test", tracking_uri=(tmp_path / "mlruns").as_uri())
    trainer = quiet_trainer(tmp_path, logger=[logger, CSVLogger(tmp_path)])
    log_texts(trainer, {("activation_swap", "step_1", "act#1"): "relu -> silu"})
    log_figures(trainer, {("curvature", "act#1", "mean"): 0.5}, step=1)
    data = logger.experiment.get_run(logger.run_id).data
    assert data.params == {"activation_swap/step_1/act_1": "relu -> silu"}
    assert data.metrics == {"curvature/act_1/mean": 0.5}
    assert trainer.loggers[1].experiment.metrics == [{"curvature/act#1/mean": 0.5, "step": 1}]


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.randn(8, 6)


def test_a_run_of_a_stream_has_no_known_end(tmp_path):
    trainer = quiet_trainer(tmp_path, ActivationSwap({"activation:relu": "gelu"}, at_step=3), max_epochs=1)
    with collected_warnings("this run ends") as messages:
        trainer.fit(SmallNet(), DataLoader(Stream(), batch_size=4, collate_fn=lambda rows: next(iter(loader()))))
    assert messages == []
