"""TweetTagger: the paper's net, its optimizer, checkpoints, export, and its error on the real tweets."""

import pytest
import torch
from small_task import quiet_trainer
from torch.nn import functional
from tweet_files import write_tweets

from lit_gelu.data import TweetData
from lit_gelu.errors import ArgumentError
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import TweetTagger

# Of the words of the small files five have a vector.
pytestmark = pytest.mark.filterwarnings("ignore:.* has no vector for .* of the tweets' tokens")


def test_errors_are_shares_of_tokens_and_the_checkpoint_exports(tmp_path):
    torch.manual_seed(0)
    data = TweetData(write_tweets(tmp_path), batch_size=2, clusters="clusters.txt")
    model = TweetTagger("elu", learning_rate=1e-4)
    trainer = quiet_trainer(max_epochs=1, enable_checkpointing=True, default_root_dir=tmp_path)
    trainer.fit(model, datamodule=data)
    assert set(trainer.callback_metrics) == {"train_loss", "val_loss", "val_error"}
    loaded = TweetTagger.load_from_checkpoint(trainer.checkpoint_callback.best_model_path, weights_only=True)
    assert dict(model.hparams) == {
        "activation": "elu",
        "learning_rate": 1e-4,
        "keep": 0.8,
        "vector_size": 50,
    }
    assert dict(loaded.hparams) == dict(model.hparams)
    (result,) = quiet_trainer().test(loaded, datamodule=data, verbose=False)
    with torch.no_grad():
        logits = model.eval()(data.test_set.inputs)
    wrong = [int(row.argmax() != tag) for row, tag in zip(logits, data.test_set.labels, strict=True)]
    assert result["test_error"] == pytest.approx(sum(wrong) / 3)
    assert result["test_loss"] == pytest.approx(functional.cross_entropy(logits, data.test_set.labels).item(), rel=1e-5)
    export_onnx(loaded, tmp_path / "tagger.onnx")
    assert check_parity(loaded, tmp_path / "tagger.onnx", data).passed


def test_vectors_of_another_size(tmp_path):
    data = TweetData(write_tweets(tmp_path), vectors="vectors.txt", batch_size=2)
    (result,) = quiet_trainer().test(TweetTagger(vector_size=2), datamodule=data, verbose=False)
    assert set(result) == {"test_loss", "test_error"}
    with pytest.raises(ArgumentError):
        quiet_trainer().test(TweetTagger(), datamodule=data, verbose=False)
    with pytest.raises(ArgumentError):
        TweetTagger()(torch.zeros(2, 150, dtype=torch.int64))


@pytest.mark.full
@pytest.mark.realdata
def test_error_on_the_real_tweets_with_clusters_for_vectors(record_property):
    """Not the paper's vectors: an untuned probe with these clusters had 14.1 % test error, ten epochs are enough."""
    data = TweetData(clusters="50mpaths2")
    if not data.folder.is_dir():
        pytest.skip("LIT_GELU_DATA has no folder tweets")
    torch.manual_seed(0)
    model = TweetTagger()
    trainer = quiet_trainer(max_epochs=10)
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    record_property("test_error", result["test_error"])
    assert trainer.global_step == 9130
    assert 0.12 < result["test_error"] < 0.145
