"""An order of samples by seed and epoch: the same again, also in the middle of an epoch, without a trace."""

import copy

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from small_task import quiet_trainer

from lit_gelu.callbacks import ExactResume
from lit_gelu.data import CorruptDataError, InMemoryDataModule
from lit_gelu.data.in_memory import InMemorySamples, order_of_epoch
from lit_gelu.tasks import TweetTagger


class Samples(InMemoryDataModule):
    """Samples that are given."""

    def __init__(self, tensors, batch_size):
        super().__init__(batch_size)
        self.samples = InMemorySamples(*tensors)

    def load_train_and_val(self):
        return self.samples, InMemorySamples(*(tensor[:0] for tensor in self.samples.tensors))

    def load_test(self):
        return self.samples


def loader(samples=23, batch_size=5):
    """Return a loader of numbers."""
    data = Samples((torch.arange(samples), torch.zeros(samples)), batch_size)
    data.order = "seed"
    data.setup("fit")
    return data.train_dataloader()


def rows(given):
    """Return the numbers that a loader, or an iterator of one, gives."""
    return [inputs.tolist() for inputs, _ in given]


def of_epoch(seed, epoch):
    """Return the batches of an epoch."""
    return order_of_epoch(23, seed, epoch)[:20].view(4, 5).tolist()


def test_orders_hold_every_sample_once_and_differ():
    orders = [order_of_epoch(100, seed, epoch).tolist() for seed in (0, 1, -1) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == len(orders)


def test_passes_are_epochs_of_the_global_seed():
    torch.manual_seed(6)
    torch.rand(3)
    given, before = loader(), torch.get_rng_state()
    assert [rows(given), rows(given)] == [of_epoch(6, 0), of_epoch(6, 1)]
    given.sampler.set_epoch(7)
    assert rows(given) == of_epoch(6, 7)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("taken", [1, 3, 4])
def test_a_pass_goes_on_without_taking_again_what_was_taken(taken):
    torch.manual_seed(1)
    whole = loader()
    rows(whole)
    batches = iter(whole)
    for _ in range(taken):
        next(batches)
    state = copy.deepcopy(whole.state_dict())
    torch.manual_seed(2)
    resumed = loader()
    seen = []
    resumed.dataset.__class__ = type("Seen", (type(resumed.dataset),), {
        "__getitems__": lambda self, indices: seen.append(indices) or super(type(self), self).__getitems__(indices)
    })  # fmt: skip
    resumed.load_state_dict(state)
    expected = of_epoch(1, 1)[taken:] if taken < 4 else of_epoch(1, 0)
    assert rows(resumed) == expected
    assert len(seen) == len(expected)
    resumed.sampler.set_epoch(2)
    assert rows(resumed) == of_epoch(1, 2)


@pytest.mark.parametrize("state", [None, {}, {"taken": 1}, {"taken": 2, "seed": "0", "epoch": 1}, {"taken": "1"}])
def test_a_damaged_state_is_refused(state):
    with pytest.raises(CorruptDataError):
        loader().load_state_dict(state)


class Seen(Callback):
    """Keeps the inputs' first numbers of every batch, and a checkpoint of one step."""

    def __init__(self, at=None, path=None):
        self.batches, self.at, self.path = [], at, path

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        self.batches.append(batch[0][:, 0].tolist())
        if trainer.global_step == self.at:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("at", [2, 4, 6])
def test_a_trainer_goes_on_in_the_order(tmp_path, at):
    inputs = torch.arange(20.0)[:, None].expand(20, 6) / 20

    def trained(seen, path=None, seed=5):
        data = Samples((inputs, torch.zeros(20, dtype=torch.int64)), 5)
        data.order = "seed"
        seed_everything(seed, verbose=False)
        task = TweetTagger(vector_size=2, keep=1.0)
        trainer = quiet_trainer(max_epochs=3, callbacks=[seen, ExactResume()], limit_val_batches=0)
        trainer.fit(task, datamodule=data, ckpt_path=path, weights_only=True)
        return task

    whole, path = Seen(at, tmp_path / "run.ckpt"), tmp_path / "run.ckpt"
    expected = trained(whole)
    epochs = [order_of_epoch(20, 5, epoch).view(4, 5) / 20 for epoch in range(3)]
    assert torch.allclose(torch.tensor(whole.batches), torch.cat(epochs))
    rest = Seen()
    found = trained(rest, path, seed=9)
    assert rest.batches == whole.batches[at:]
    assert all(torch.equal(p, q) for p, q in zip(found.parameters(), expected.parameters(), strict=True))
