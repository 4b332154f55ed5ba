"""Members that change while they are trained, by callbacks and by their own validation, each against its run alone."""

import functools

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from measured_replicas import Measuring, Sets
from replica_runs import batched_products_are_single_ones
from small_task import quiet_trainer
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from lit_gelu.data.in_memory import InMemorySamples
from lit_gelu.replicas import MembersDifferError, NotReplicableError, ReplicaDataModule, ReplicaGroup
from lit_gelu.tasks import TweetTagger


class Own(Measuring):
    """A module with what a training step reads besides its layers."""

    def __init__(self, lr=0.1):
        super().__init__(lr)
        self.beta, self.steps, self.losses, self.mean = 1.0, 0, [], torch.tensor(1.0)
        self.net.append(nn.Dropout(0.25))

    def training_step(self, batch, index):
        loss = super().training_step(batch, index) * self.beta
        self.steps += 1
        self.losses.append(loss.detach())
        self.mean = 0.9 * self.mean + 0.1 * loss.detach()
        return loss

    def on_validation_epoch_end(self):
        super().on_validation_epoch_end()
        self.log("steps", float(self.steps))
        self.log("mean of losses", torch.stack(self.losses).mean() if self.losses else torch.tensor(0.0))
        self.log("mean", self.mean)
        self.losses.clear()


class Halving(Own):
    """Its validation changes what its training step reads, and notes what no step reads."""

    def on_validation_epoch_end(self):
        super().on_validation_epoch_end()
        self.beta, self.best = self.beta / 2, float(self.net[0].weight[0, 0])


class ReadingItsBest(Halving):
    def training_step(self, batch, index):
        return super().training_step(batch, index) * getattr(self, "best", 1.0)


class Changing(Callback):
    """Changes every member, or the run alone, when its second epoch begins."""

    def __init__(self, change):
        self.change = change

    def on_train_epoch_start(self, trainer, module):
        for member in getattr(module, "members", [module]) if trainer.current_epoch == 1 else ():
            self.change(member)


class Images(Sets):
    """Images whose channels lie together in memory, and a class for each."""

    def load_train_and_val(self):
        train, others = (
            InMemorySamples(some.inputs.view(-1, 3, 2, 4).to(memory_format=torch.channels_last), some.labels)
            for some in super().load_train_and_val()
        )
        return train, others


Tagger = functools.partial(TweetTagger, vector_size=8, keep=0.75, activation="gelu")
THREE = [{}] * 3
CHANGES = {
    "attribute": lambda member: setattr(member, "beta", 0.5),
    "dropout": lambda member: setattr(dropouts(member)[0], "p", 0.75),
    "mode": lambda member: dropouts(member)[0].eval(),
    "activation": lambda member: replace_activation(member),
}


def dropouts(member):
    return [part for part in member.modules() if type(part) is nn.Dropout]


def replace_activation(member):
    if isinstance(member, TweetTagger):
        member.hidden[0].activation = nn.SiLU()
    else:
        member.net[1] = nn.SiLU()


def states(build, kind=None, change=None, data=Sets, cells=THREE):
    """Return the weights at the end of a fit, of the runs alone or of a group of that kind, and what was logged."""

    def trainer():
        callbacks = [] if change is None else [Changing(change)]
        return quiet_trainer(max_epochs=3, callbacks=callbacks)

    if kind is not None:
        group = ReplicaGroup.of(build, cells, list(range(len(cells))), executor=kind)
        trainer().fit(group, datamodule=ReplicaDataModule(data()))
        values = [{name: of_all[r] for name, of_all in group.measured.items()} for r in range(len(cells))]
        return [member.state_dict() for member in group.members], values
    found = []
    for seed, cell in enumerate(cells):
        seed_everything(seed, verbose=False)
        module, own = build(**cell), trainer()
        own.fit(module, datamodule=data())
        logged = {name: value for name, value in own.callback_metrics.items() if name != "train_loss"}
        found.append((module.state_dict(), logged))
    return [state for state, _ in found], [logged for _, logged in found]


def check(build, kinds, **options):
    alone, logged = states(build, **options)
    for kind in kinds:
        exact = kind in {"loop", "written"} or batched_products_are_single_ones((24, 32, 25), 8)
        together, values = states(build, kind, **options)
        for one, other in zip(alone, together, strict=True):
            torch.testing.assert_close(other, one, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5)
        torch.testing.assert_close(values, logged, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("build", [Own, Halving])
def test_what_a_step_reads_and_sets_is_each_members_own(build):
    check(build, ["vmap", "loop"])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.filterwarnings("ignore:.*in eval mode at the start")
def test_what_a_callback_changes_is_followed(change):
    check(Own, ["vmap", "loop"], change=CHANGES[change])
    if change not in {"attribute", "mode"}:
        check(Tagger, ["written", "stacked", "vmap", "loop"], change=CHANGES[change])


@pytest.mark.parametrize("kind", ["vmap", "loop"])
def test_gradients_of_a_callbacks_own_are_no_matter(kind):
    check(Own, [kind], change=lambda member: member.net[0](torch.ones(2, 24)).sum().backward())


def test_what_members_do_not_have_in_common_by_now_is_not_read():
    with pytest.raises(NotReplicableError, match=r"reads 'best', in which the members differ.*loop"):
        states(ReadingItsBest, "vmap")
    check(ReadingItsBest, ["loop"])


def frozen(member):
    next(member.parameters()).requires_grad_(False)


def clamping(member):
    next(member.parameters()).register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))


@pytest.mark.parametrize("kind", ["vmap", "loop", "written"])
@pytest.mark.parametrize(
    ("change", "said"), [(frozen, "requires_grad of members' parameters"), (clamping, "has a hook for its gradient")]
)
def test_what_a_group_cannot_follow_is_refused(change, said, kind):
    build = Tagger if kind == "written" else Own
    with pytest.raises(NotReplicableError, match=rf"{said}.*alone"):
        states(build, kind, change=change)


def test_hooks_on_parameters_are_refused_at_once():
    class Clamping(Own):
        def __init__(self):
            super().__init__()
            clamping(self)

    for kind in ("vmap", "loop"):
        with pytest.raises(NotReplicableError, match=r"'net\.0\.weight' of Clamping has a hook for its gradient"):
            ReplicaGroup.of(Clamping, [{}, {}], [0, 1], executor=kind)


def test_a_hook_on_a_layer_of_a_task_is_refused():
    group = ReplicaGroup.of(Tagger, [{}, {}], [0, 1])
    group.members[0].hidden[0].register_forward_hook(lambda *_: None)
    with pytest.raises(NotReplicableError, match=r"Members were changed.*executor='written' does not follow.*loop"):
        quiet_trainer(max_epochs=1).fit(group, datamodule=ReplicaDataModule(Sets()))


def test_members_that_are_changed_in_different_ways_are_refused():
    layers = iter([nn.Dropout(0.1), nn.Identity(), nn.Dropout(0.1)])
    with pytest.raises(MembersDifferError, match=r"differ at 'net\.2'"):
        states(Own, "vmap", change=lambda member: member.net.__setitem__(2, next(layers)))


class Convolving(LightningModule):
    """Dropout of images, which draws in the order in which they lie in memory."""

    def __init__(self):
        super().__init__()
        self.net, self.last = nn.Conv2d(3, 4, 2, padding=1), nn.Linear(4 * 15, 25)

    def training_step(self, batch, index):
        hidden = functional.dropout(self.net(functional.dropout(batch[0], 0.25)).relu(), 0.25)
        return functional.cross_entropy(self.last(hidden.flatten(1)), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", functional.cross_entropy(self.last(self.net(batch[0]).flatten(1)), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def test_samples_lie_in_memory_as_in_the_run_alone():
    check(Convolving, ["loop"], data=Images)


class Checkpointing(Own):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant, self.first = reentrant, nn.Linear(24, 24)

    def training_step(self, batch, index):
        inputs = batch[0].clone().requires_grad_() if self.reentrant else batch[0]
        hidden = checkpoint(lambda given: self.first(given).tanh(), inputs, use_reentrant=self.reentrant)
        return super().training_step((hidden, batch[1]), index)


def test_checkpoints_that_run_the_code_again():
    check(Checkpointing, ["loop"], cells=[{"reentrant": False}] * 2)
    with pytest.raises(NotReplicableError, match=r"left a gradient in 'first\.weight'.*use_reentrant=False"):
        states(Checkpointing, "loop", cells=[{"reentrant": True}] * 2)
    with pytest.raises(NotReplicableError, match=r"what torch\.vmap cannot.*loop"):
        states(Checkpointing, "vmap", cells=[{"reentrant": False}] * 2)


class Assigning(Own):
    def training_step(self, batch, index):
        weight = self.net[0].weight
        weight.data = weight.data.clamp(-0.1, 0.1)
        return super().training_step(batch, index)


def test_data_that_become_anothers_are_refused():
    with pytest.raises(NotReplicableError, match=r"assigns a new tensor to 'net\.0\.weight'.*in place"):
        states(Assigning, "loop")


class InPlace(Own):
    def training_step(self, batch, index):
        return super().training_step(
            (functional.elu(self.net[0](batch[0])[:, :25] * 1, inplace=True)[:, :24], batch[1]), index
        )


class Hooked(Own):
    def training_step(self, batch, index):
        hidden = self.net[0](batch[0])
        hidden.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return super().training_step((hidden[:, :24], batch[1]), index)


class ReadingGradients(Own):
    """Descends faster where the last step's gradients were large."""

    def training_step(self, batch, index):
        norms = [p.grad.norm() for p in self.parameters() if p.grad is not None]
        return super().training_step(batch, index) * (1 + 0.01 * torch.stack(norms).sum() if norms else 1)


def accumulating(member):
    """Do what a callback may that has gradients of its own."""
    member.net[0](torch.ones(2, 24)).sum().backward()


@pytest.mark.parametrize("change", [None, accumulating])
def test_a_step_reads_the_gradients_of_the_one_before(change):
    check(ReadingGradients, ["loop"], **({"change": change} if change else {}))


def test_gradients_go_along_to_another_precision():
    group = ReplicaGroup.of(ReadingGradients, [{}], [0], executor="loop")
    seed_everything(0, verbose=False)
    alone = ReadingGradients()
    for precision in ("32-true", "64-true"):
        options = {"max_epochs": 1, "precision": precision, "limit_val_batches": 0}
        quiet_trainer(**options).fit(group, datamodule=ReplicaDataModule(Sets()))
        quiet_trainer(**options).fit(alone, datamodule=Sets())
    torch.testing.assert_close(group.members[0].state_dict(), alone.state_dict(), rtol=0, atol=0)
    assert group.members[0].net[0].weight.grad.dtype == torch.float64


class Penalised(Own):
    def training_step(self, batch, index):
        loss = super().training_step(batch, index)
        (gradient,) = torch.autograd.grad(loss, [self.net[0].weight], create_graph=True)
        return loss + 0.1 * gradient.square().sum()


class Directional(Own):
    def training_step(self, batch, index):
        _, slopes = torch.func.jvp(lambda inputs: self.net[0](inputs), (batch[0],), (torch.ones_like(batch[0]),))
        return super().training_step(batch, index) + 0.1 * slopes.square().mean()


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (InPlace, "changes a tensor in place"),
        (Hooked, "gives a tensor a hook for its gradient"),
        (Penalised, r"asks for a gradient itself, as by torch\.autograd\.grad"),
        (Directional, r"a derivative by torch\.func\.jvp"),
    ],
)
def test_what_the_gradient_of_all_cannot_do_is_refused(build, said):
    with pytest.raises(NotReplicableError, match=rf"{said}.*loop"):
        states(build, "vmap")
    check(build, ["loop"])
