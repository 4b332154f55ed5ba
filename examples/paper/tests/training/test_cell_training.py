"""One run: what is kept of it is enough to make it by hand."""

import json
import sys

import pytest
import torch
from file_limits import files_limited_to
from paper_runs import DIGITS, SHARING

from lit_gelu.cli.main import main
from gelu_paper.errors import PaperArgumentError
from gelu_paper.jobs import Done, Failure, Preparation, RunOptions
from gelu_paper.pools.job_answer import answer
from gelu_paper.protocol.cells import expand
from gelu_paper.training.cell_training import DataCache, build_data, import_class, train
from lit_gelu.tasks import MNISTClassifier

pytestmark = pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning")


def silent(epoch: float) -> None: ...


def test_lit_gelu_fit_makes_the_same_net_out_of_a_record(tmp_path):
    cell = next(cell for cell in expand(DIGITS, "quick") if cell.setting["keep"] == 0.5 and cell.seed == 1)
    record = train(cell, DataCache(None), RunOptions(checkpoints=str(tmp_path / "ours")), silent)

    given = json.loads(record.to_json())
    config = {"seed_everything": given["seed"]} | {name: given["config"][name] for name in ("model", "data", "trainer")}
    config["trainer"] |= {"accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False}
    config["trainer"]["default_root_dir"] = str(tmp_path / "runs")
    config["trainer"]["callbacks"] = {
        "class_path": "lightning.pytorch.callbacks.ModelCheckpoint",
        "init_args": {"dirpath": str(tmp_path / "by_hand"), "filename": "last"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["fit", "--config", str(tmp_path / "config.json")]) == 0

    ours = MNISTClassifier.load_from_checkpoint(tmp_path / "ours" / f"{cell.key}.ckpt", weights_only=True)
    by_hand = MNISTClassifier.load_from_checkpoint(tmp_path / "by_hand" / "last.ckpt", weights_only=True)
    for one, other in zip(ours.parameters(), by_hand.parameters(), strict=True):
        assert torch.equal(one, other)


def test_data_in_memory_change_nothing():
    cell = expand(SHARING, "quick")[0]
    cache = DataCache(None)
    first, second = (train(cell, cache, RunOptions(), silent) for _ in range(2))
    assert first.curves == second.curves


def test_data_are_kept_until_others_are_wanted():
    cache = DataCache(None)
    config = {"class_path": "lit_gelu.data.DigitsData", "init_args": {"batch_size": 64}}
    first = cache.get(config)
    assert cache.get(json.loads(json.dumps(config))) is first
    assert cache.get({**config, "init_args": {"batch_size": 32}}) is not first


def test_the_root_goes_to_the_data_that_take_one():
    assert build_data({"class_path": "lit_gelu.data.DigitsData", "init_args": {}}, "nowhere").batch_size == 32
    mnist = build_data({"class_path": "lit_gelu.data.MNISTData", "init_args": {}}, "nowhere")
    assert mnist.folder.as_posix() == "nowhere/MNIST/raw"


@pytest.mark.parametrize(
    "path", ["lit_gelu.tasks.NoSuchTask", "MNISTClassifier", "lit_gelu.tasks.mnist_classifier.WIDTH"]
)
def test_classes_that_are_not_there(path):
    with pytest.raises(PaperArgumentError, match="no class"):
        import_class(path)


def test_answers():
    options, cache = RunOptions(root="nowhere"), DataCache("nowhere")
    digits = Preparation("digits", {"class_path": "lit_gelu.data.DigitsData", "init_args": {}})
    assert answer(digits, cache, options, silent) == Done()
    mnist = Preparation("mnist", {"class_path": "lit_gelu.data.MNISTData", "init_args": {}})
    missing = answer(mnist, cache, options, silent)
    assert isinstance(missing, Failure)
    assert missing.kind == "missing"
    assert missing.trace == ""
    mistaken = Preparation("mnist", {"class_path": "lit_gelu.data.MNISTData", "init_args": {"batch_size": 0}})
    assert answer(mistaken, cache, options, silent).kind == "error"
    absent = Preparation("absent", {"class_path": "no_such_package.Data", "init_args": {}})
    assert answer(absent, cache, options, silent).kind == "error"


def test_the_other_side_s_end_ends_the_work():
    def gone(epoch: float) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        answer(expand(SHARING, "quick")[0], DataCache(None), RunOptions(), gone)


@pytest.mark.skipif(sys.platform == "win32", reason="the limit on the size of files is POSIX's")
def test_a_run_whose_checkpoint_cannot_be_written_is_recorded(tmp_path):
    """With files of 20 kB at most, as on a disk that is nearly full: a net of one layer has a checkpoint of 1 MB."""
    cell, heard = expand(SHARING, "quick")[0], []
    expected = train(cell, DataCache(None), RunOptions(), silent)
    with files_limited_to(20_000):
        record = train(cell, DataCache(None), RunOptions(checkpoints=str(tmp_path)), heard.append)
    assert (record.curves, record.status) == (expected.curves, "finished")
    (warned,) = [how_far for how_far in heard if how_far.warning]
    assert warned.unkept == cell.key
    assert f"its checkpoint is not kept: Cannot write '{tmp_path / cell.key}.ckpt'" in warned.warning
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
