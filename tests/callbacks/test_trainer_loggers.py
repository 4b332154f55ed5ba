"""Names as loggers take them."""

import pytest
from callback_helpers import quiet_trainer
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger

from lit_gelu.callbacks.trainer_loggers import log_figures, log_texts


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
