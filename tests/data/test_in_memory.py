"""The data module that the small sets share, on a data set made here."""

import pickle
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from small_task import quiet_trainer
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from lit_gelu.data import DataArgumentError, DataError, InMemoryDataModule, InMemoryImages
from lit_gelu.data.in_memory import fits, whole_batch
from lit_gelu.data.resumable_loader import ResumableDataLoader


def images(first: int, count: int) -> InMemoryImages:
    """Images of one pixel; pixel and label are the sample's number."""
    numbers = torch.arange(first, first + count)
    return InMemoryImages(numbers.float().reshape(-1, 1, 1, 1), numbers)


class Numbers(InMemoryDataModule):
    """23 training samples, 5 for validation, 7 for testing."""

    def __init__(self, batch_size=4):
        super().__init__(batch_size)
        self.reads = []

    def load_train_and_val(self):
        self.reads.append("train")
        return images(0, 23), images(100, 5)

    def load_test(self):
        self.reads.append("test")
        return images(200, 7)


def labels_of(loader):
    batches = list(loader)
    for pixels, labels in batches:
        assert torch.equal(pixels.flatten(), labels.float())
    return [labels.tolist() for _, labels in batches]


def test_training_batches_are_shuffled_anew_and_the_last_smaller_one_is_dropped():
    data = Numbers()
    data.setup("fit")
    loader = data.train_dataloader()
    torch.manual_seed(0)
    first, second = labels_of(loader), labels_of(loader)
    torch.manual_seed(0)
    assert labels_of(loader) == first
    assert first != second
    for epoch in (first, second):
        assert [len(batch) for batch in epoch] == [4] * 5
        assert len({label for batch in epoch for label in batch}) == 20


@pytest.mark.parametrize(
    ("stage", "loader", "first", "count"),
    [("validate", "val", 100, 5), ("test", "test", 200, 7), ("predict", "predict", 200, 7)],
)
def test_evaluation_batches_are_all_samples_in_order(stage, loader, first, count):
    data = Numbers()
    data.setup(stage)
    batches = labels_of(getattr(data, f"{loader}_dataloader")())
    assert [label for batch in batches for label in batch] == list(range(first, first + count))


def test_the_loaders_are_plain_ones_that_lightning_can_give_another_sampler():
    data = Numbers()
    data.setup()
    train, val = data.train_dataloader(), data.val_dataloader()
    assert (type(train), type(val)) == (ResumableDataLoader, DataLoader)
    assert isinstance(train.sampler, RandomSampler)
    assert isinstance(val.sampler, SequentialSampler)
    pickle.loads(pickle.dumps(train))  # worker processes and spawned ranks need it


def test_reads_only_what_a_stage_needs_and_only_once():
    data = Numbers()
    for stage in ("fit", "validate", "fit"):
        data.setup(stage)
    assert data.reads == ["train"]
    data.setup(None)
    assert data.reads == ["train", "test"]


def test_loader_before_setup_says_what_to_call():
    with pytest.raises(DataError, match=r"Numbers has not read its data yet: call setup\('fit'\) first"):
        Numbers().train_dataloader()


@pytest.mark.parametrize("batch_size", [0, -1, 2.0, "4", True, None])
def test_refuses_batch_sizes_that_are_no_positive_integers(batch_size):
    with pytest.raises(DataArgumentError, match="batch_size="):
        Numbers(batch_size)


def test_a_batch_may_be_the_whole_training_set():
    data = Numbers(batch_size=23)
    data.setup("fit")
    assert [sorted(labels) for labels in labels_of(data.train_dataloader())] == [list(range(23))]


def test_refuses_a_batch_larger_than_the_training_set():
    data = Numbers(batch_size=24)
    data.setup("test")
    with pytest.raises(DataArgumentError, match=r"batch_size=24 is larger than the training set \(23 samples\)"):
        data.setup("fit")


class Recorder(LightningModule):
    """Writes down the labels it gets, in a file per rank."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def training_step(self, batch, batch_index):
        with (self.folder / f"{self.global_rank}.txt").open("a") as file:
            file.write(f"{self.current_epoch} {' '.join(map(str, batch[1].tolist()))}\n")
        return self.weight * batch[0].sum()

    def validation_step(self, batch, batch_index):
        pass

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


@pytest.mark.forks
def test_two_ranks_share_an_epoch(tmp_path):
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp_fork",
        devices=2,
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Recorder(tmp_path), datamodule=Numbers())
    rows = [[line.split() for line in (tmp_path / f"{rank}.txt").read_text().splitlines()] for rank in range(2)]
    for epoch in "01":
        seen = [[label for row in rank if row[0] == epoch for label in row[1:]] for rank in rows]
        assert [len(labels) for labels in seen] == [12, 12]  # 23 samples padded to 24, three batches of 4 a rank
        assert len(set(seen[0]) | set(seen[1])) == 23
    assert [row[1:] for row in rows[0] if row[0] == "0"] != [row[1:] for row in rows[0] if row[0] == "1"]


@pytest.mark.parametrize(("nbytes", "free", "expected"), [(250, 1000, True), (251, 1000, False), (0, 0, True)])
def test_a_set_lives_on_a_gpu_if_it_takes_a_quarter_of_the_free_memory_at_most(monkeypatch, nbytes, free, expected):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10 * free))
    assert fits(nbytes, torch.device("cuda", 0)) is expected


def test_a_set_stays_in_host_memory_for_devices_that_are_not_asked_for_theirs():
    assert fits(10**15, torch.device("cpu"))
    assert not fits(1, torch.device("mps"))


def test_batches_are_cut_where_the_set_was_moved_to():
    """The meta device stands in for a GPU: what lies there has no values, so a batch of it shows where it was cut."""
    samples = images(0, 3)
    assert samples.nbytes == 3 * (4 + 8)
    samples.move_to(torch.device("meta"))
    assert {tensor.device.type for tensor in samples.__getitems__([2, 0])} == {"meta"}


@pytest.mark.gpu
def test_a_set_that_fits_is_on_the_gpu_during_training():
    data, devices = Numbers(), set()

    class Watch(LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch, batch_index):
            devices.add(data.train_set.inputs.device.type)
            return (batch[0].mean() * self.weight).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = Trainer(accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False)
    trainer.fit(Watch(), datamodule=data)
    assert devices == {"cuda"}
    assert not data.train_dataloader().pin_memory


class SavesBehind(Callback):
    """Saves behind a number of steps, before what Lightning does at an epoch's end."""

    def __init__(self, steps, path):
        self.steps, self.path = steps, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.steps:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("order", ["global", "seed"])
@pytest.mark.parametrize("every", [3, 2])
def test_a_limited_run_resumes_as_with_a_plain_loader(order, every, tmp_path):
    """A checkpoint behind an epoch's last batch that the Trainer takes is none from within an epoch."""

    class Seen(LightningModule):
        def __init__(self):
            super().__init__()
            self.weight, self.batches = torch.nn.Parameter(torch.zeros(1)), {}

        def training_step(self, batch, batch_index):
            self.batches[self.current_epoch] = self.batches.get(self.current_epoch, 0) + 1
            return self.weight.sum()

        def validation_step(self, batch, batch_index):
            pass

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fitted(data, **options):
        model = Seen()
        trainer = quiet_trainer(limit_train_batches=3, num_sanity_val_steps=0, **options)
        trainer.fit(model, **data, ckpt_path=path if path.exists() else None)
        return model.batches, trainer.global_step

    def plain():
        numbers = Numbers()
        numbers.setup("fit")
        return {
            "train_dataloaders": DataLoader(numbers.train_set, batch_size=4, drop_last=True, collate_fn=whole_batch),
            "val_dataloaders": numbers.val_dataloader(),
        }

    def ours():
        data = Numbers()
        data.order = order
        return {"datamodule": data}

    found = {}
    for name, data in (("plain", plain), ("ours", ours)) if every == 3 else (("ours", ours),):
        path = tmp_path / f"{name}.ckpt"
        fitted(data(), max_epochs=1, callbacks=[SavesBehind(every, path)])
        assert path.exists()
        found[name] = fitted(data(), max_epochs=3)
    assert found["ours"][0][2] == 3
    if every == 3:
        assert found["ours"] == found["plain"] == ({1: 3, 2: 3}, 9)
    else:
        assert found["ours"] == ({0: 1, 1: 3, 2: 3}, 9)  # a plain loader cannot go on within an epoch


def test_a_batch_that_is_too_large_for_a_rank():
    data = Numbers(batch_size=12)
    data.trainer = Mock(world_size=2)
    data.setup("fit")  # of 23 samples, Lightning's sampler gives each rank 12
    data.batch_size = 13
    with pytest.raises(DataArgumentError, match="12 samples on each of 2 ranks"):
        data.setup("fit")


def test_another_batch_size_is_that_of_every_loader():
    data = Numbers(batch_size=2)
    data.setup()
    data.batch_size = 5  # as Lightning's batch size finder does
    assert {loader.batch_size for loader in (data.train_dataloader(), data.val_dataloader())} == {5}
