"""The data module that the small sets share, on a data set made here."""

import pickle

import pytest
import torch
from data_checkpoints import OneNumber
from small_task import quiet_trainer
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler

from lit_gelu.data import InMemoryDataModule, InMemorySamples
from lit_gelu.data.in_memory import fits
from lit_gelu.data.resumable_loader import ResumableDataLoader
from lit_gelu.errors import ArgumentError


def images(first: int, count: int) -> InMemorySamples:
    """Images of one pixel; pixel and label are the sample's number."""
    numbers = torch.arange(first, first + count)
    return InMemorySamples(numbers.float().reshape(-1, 1, 1, 1), numbers)


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


def test_refuses_a_batch_larger_than_the_training_set():
    data = Numbers(batch_size=24)
    data.setup("test")
    with pytest.raises(ArgumentError):
        data.setup("fit")


class Recorder(OneNumber):
    """Writes down the labels it gets, in a file per rank."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def training_step(self, batch, batch_idx):
        with (self.folder / f"{self.global_rank}.txt").open("a") as file:
            file.write(f"{self.current_epoch} {' '.join(map(str, batch[1].tolist()))}\n")
        return super().training_step(batch, batch_idx)


@pytest.mark.forks
def test_two_ranks_share_an_epoch(tmp_path):
    quiet_trainer(strategy="ddp_fork", devices=2, max_epochs=2).fit(Recorder(tmp_path), datamodule=Numbers())
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
