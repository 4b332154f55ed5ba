"""Members as files of their own: from a callback, from a live group, out of the group's; and hostile ones."""

import copy
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, LightningModule, seed_everything
from replica_runs import same_content
from small_task import SmallData, quiet_trainer

from lit_gelu.callbacks import CallbackArgumentError, ExactResume, ReplicaCheckpoint, UnsupportedRunError
from lit_gelu.callbacks.checkpoint_file import REPLICAS_KEY, CheckpointFileError
from lit_gelu.cli.main import main
from lit_gelu.replicas import (
    DamagedGroupError,
    Member,
    ReplicaArgumentError,
    ReplicaDataModule,
    ReplicaError,
    ReplicaGroup,
)
from lit_gelu.replicas.membership.building import keys_of
from lit_gelu.replicas.stored.extraction import extracted
from lit_gelu.tasks import MNISTClassifier

CELLS = [
    {"activation": "swish(beta=1.5, learnable=True)", "hidden_layers": 2},
    {"activation": "gelu_tanh", "keep": 0.5, "learning_rate": 1e-4, "hidden_layers": 2},
    {"activation": "prelu", "hidden_layers": 2},
]
SEEDS = [0, 1, 0]
EPOCH = 3  # steps


class Stopping(ReplicaCheckpoint):
    """Also lets a replica be inactive, and saves the group."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        module.active[2] = False
        trainer.save_checkpoint(self.folder / f"group {trainer.global_step}.ckpt")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder of files, and the group that they are of."""
    folder = tmp_path_factory.mktemp("members")
    group = ReplicaGroup.of(MNISTClassifier, CELLS, SEEDS, steps_per_batch=2)
    trainer = quiet_trainer(max_steps=5, callbacks=[Stopping(folder)])
    trainer.fit(group, datamodule=ReplicaDataModule(SmallData()))
    return folder, group


def read(path):
    return torch.load(path, weights_only=True)


def alike(one, other):
    """Compare checkpoints but for generators that no replica draws from, and Lightning's counts of what was done."""
    one, other = copy.deepcopy([one, other])
    for checkpoint in (one, other):
        (rank,) = checkpoint["callbacks"][ExactResume().state_key]["ranks"]
        for states in (rank["generators"], rank["loaders"][0]["start"]):
            del states["python"], states["numpy"]
        del checkpoint["loops"]
    return same_content(one, other)


def test_the_callback_writes_what_the_run_ends_with(made):
    folder, group = made
    for replica, key in enumerate(group.keys):
        saved = read(folder / f"{key}.ckpt")
        assert alike(saved, group.member_checkpoint(replica))
        loaded = MNISTClassifier.load_from_checkpoint(folder / f"{key}.ckpt")
        assert loaded.hparams == group.members[replica].hparams
        assert same_content(dict(loaded.state_dict()), dict(group.members[replica].state_dict()))
    assert [read(folder / f"{key}.ckpt")["global_step"] for key in group.keys] == [5, 5, 2]
    assert not [path for path in folder.iterdir() if path.suffix != ".ckpt"]


def test_it_writes_the_chosen_members_every_few_epochs(tmp_path):
    class Looking(ReplicaCheckpoint):
        def on_train_epoch_start(self, trainer, module):
            found.append(sorted(path.name for path in self.folder.glob("*")))

    found, group = [], ReplicaGroup.of(MNISTClassifier, CELLS, SEEDS)
    callback = Looking(tmp_path, every_n_epochs=2, members=[group.keys[1], 0])
    quiet_trainer(max_epochs=3, callbacks=[callback]).fit(group, datamodule=ReplicaDataModule(SmallData()))
    names = sorted(f"{group.keys[replica]}.ckpt" for replica in (0, 1))
    assert found == [[], [], names]
    assert [read(tmp_path / name)["epoch"] for name in names] == [3, 3]


def test_what_it_does_not_take(tmp_path):
    with pytest.raises(CallbackArgumentError, match="at least 1"):
        ReplicaCheckpoint(tmp_path, every_n_epochs=0)
    data = SmallData()
    with pytest.raises(UnsupportedRunError, match="ModelCheckpoint"):
        quiet_trainer(max_epochs=1, callbacks=[ReplicaCheckpoint(tmp_path)]).fit(MNISTClassifier(), datamodule=data)
    group = ReplicaGroup.of(MNISTClassifier, CELLS, SEEDS)
    for unknown in (3, -1, True, "gelu"):
        trainer = quiet_trainer(max_epochs=1, callbacks=[ReplicaCheckpoint(tmp_path, members=[unknown])])
        with pytest.raises(CallbackArgumentError, match="numbers below 3, or keys: activation=swish"):
            trainer.fit(group, datamodule=ReplicaDataModule(data))


def test_a_file_is_as_large_as_that_of_the_run_alone(made, tmp_path):
    folder, group = made
    trainer = quiet_trainer(max_steps=5, callbacks=[ExactResume()])
    seed_everything(SEEDS[1], verbose=False)
    trainer.fit(MNISTClassifier(**CELLS[1]), datamodule=SmallData())
    trainer.save_checkpoint(tmp_path / "alone.ckpt")
    size = (folder / f"{group.keys[1]}.ckpt").stat().st_size
    assert size == pytest.approx((tmp_path / "alone.ckpt").stat().st_size, rel=0.02)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("step", [2, 3, 5])
def test_a_member_is_taken_out_of_the_groups_file(made, tmp_path, capsys, which, step):
    folder, group = made
    source = folder / f"group {step}.ckpt"
    assert main(["replicas", "extract", str(source), str(which), "-o", str(tmp_path / "a.ckpt")]) == 0
    assert main(["replicas", "extract", str(source), group.keys[which], "-o", str(tmp_path / "b.ckpt")]) == 0
    assert same_content(read(tmp_path / "a.ckpt"), read(tmp_path / "b.ckpt"))
    resumed = ReplicaGroup.of(MNISTClassifier, CELLS, SEEDS, steps_per_batch=2)
    trainer = quiet_trainer(max_steps=5)
    trainer.fit(resumed, datamodule=ReplicaDataModule(SmallData()), ckpt_path=source, weights_only=True)
    assert alike(resumed.member_checkpoint(which), read(folder / f"{group.keys[which]}.ckpt"))
    if step == 5 or which == 2:
        assert alike(read(tmp_path / "a.ckpt"), group.member_checkpoint(which))
    else:  # the run goes on alone to the same end
        module = MNISTClassifier(**CELLS[which])
        alone = quiet_trainer(max_steps=5, callbacks=[ExactResume()])
        alone.fit(module, datamodule=SmallData(), ckpt_path=tmp_path / "a.ckpt", weights_only=True)
        torch.testing.assert_close(module.state_dict(), group.members[which].state_dict(), rtol=0, atol=1e-6)


def test_the_command_does_not_write_over_the_groups_file(made, tmp_path, capsys):
    source, link = tmp_path / "group.ckpt", tmp_path / "link.ckpt"
    source.write_bytes((made[0] / "group 5.ckpt").read_bytes())
    link.symlink_to(source)
    for output in (source, link):
        assert main(["replicas", "extract", str(source), "0", "-o", str(output)]) == 2
        assert "would replace it. Give another" in capsys.readouterr().err
    assert REPLICAS_KEY in read(source)


def test_the_command_lists_the_members(made, capsys):
    folder, group = made
    assert main(["replicas", "extract", str(folder / "group 5.ckpt")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"  {r}  {key}{'  (inactive)' if r == 2 else ''}" for r, key in enumerate(group.keys)]
    assert main(["replicas", "extract", str(folder / "group 5.ckpt"), "9"]) == 2
    assert "Give a number below 3, or a key: activation=swish" in capsys.readouterr().err
    assert main(["replicas", "extract", str(folder / "group 5.ckpt"), "1"]) == 0
    assert capsys.readouterr().out.strip() == str(folder / f"group 5-{group.keys[1]}.ckpt")
    assert main(["replicas", "extract", str(folder / f"{group.keys[0]}.ckpt"), "1"]) == 2
    assert "holds no group" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_members_are_exported_and_tested(made, tmp_path, capsys):
    folder, group = made
    path = str(folder / f"{group.keys[0]}.ckpt")
    assert main(["export", path, "-o", str(tmp_path / "net.onnx")]) == 0
    quiet = ["--trainer.logger=false", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    quiet += ["--trainer.enable_model_summary=false", f"--trainer.default_root_dir={tmp_path}"]
    assert main(["test", "--ckpt_path", path, "--data", "DigitsData", *quiet]) == 0
    assert "test_error" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_a_groups_file_is_no_single_models(made, capsys):
    folder, _ = made
    path, said = folder / "group 5.ckpt", r"holds 3 replicas.*lit-gelu replicas extract FILE KEY"
    with pytest.raises(CheckpointFileError, match=said):
        MNISTClassifier.load_from_checkpoint(path)
    with pytest.raises(CheckpointFileError, match=said):
        quiet_trainer(max_epochs=1).fit(MNISTClassifier(**CELLS[0]), datamodule=SmallData(), ckpt_path=path)
    for command in (["export"], ["test", "--ckpt_path"], ["fit", "--ckpt_path"], ["curvature", "--data", "DigitsData"]):
        assert main([*command, str(path)]) == 2
        assert "lit-gelu replicas extract FILE KEY" in capsys.readouterr().err


def test_a_single_models_file_is_no_groups(made):
    folder, group = made
    with pytest.raises(ReplicaArgumentError, match="holds no group"):
        fitted(read(folder / f"{group.keys[0]}.ckpt"), folder)


def fitted(content, folder, cells=CELLS, data=None):
    """Resume a group from a checkpoint of any content."""
    torch.save(content, folder / "any.ckpt")
    group = ReplicaGroup.of(MNISTClassifier, cells, SEEDS, steps_per_batch=2)
    given = ReplicaDataModule(data or SmallData())
    quiet_trainer(max_steps=6).fit(group, datamodule=given, ckpt_path=folder / "any.ckpt", weights_only=True)
    return group


def test_other_members_and_other_data_are_refused(made, tmp_path):
    content = read(made[0] / "group 5.ckpt")
    with pytest.raises(ReplicaArgumentError, match=r"with the members .*learning_rate=0\.0001"):
        fitted(content, tmp_path, [CELLS[0], {**CELLS[1], "learning_rate": 0.1}, CELLS[2]])
    data = SmallData()
    data.batch_size = 4
    with pytest.raises(ReplicaArgumentError, match=r"epochs of 3 steps, and these data have 6"):
        fitted(content, tmp_path, data=data)


HOSTILE = {
    "seeds": [None, [], [0, 1], [0, 1, "0"], [0, 1, True], 7],
    "keys": [None, ["a"], ["a", "a", "b"], [1, 2, 3]],
    "streams": [None, [], [torch.zeros(3)] * 3, [torch.zeros(5056, dtype=torch.uint8)] * 2, [1, 2, 3]],
    "epoch_start": [None, [torch.zeros(5)] * 3, [torch.zeros(5056)] * 3],
    "place": [-1, 99, 1.0, None, True, torch.tensor(1)],
    "steps": [-3, "3", None],
    "active": [None, [1, 0, 1], [True], torch.ones(3)],
    "ends": [None, {7: {}}, {0: {}}, {0: {"global_step": "a"}}, {"a": 1}],
    "measured": [None, {"val_loss": 1.0}, {"val_loss": torch.zeros(4)}],
    "plateau_epoch": [-2, None, 0.5],
    "rows": [None, {"output.bias": [0, 9]}, {"output.bias": "abc"}, []],
    "members": [None, [{}] * 3, [{"names": 1, "extras": {}}] * 3, [{"names": [1], "extras": {}}] * 3],
    "generators": [None, 1],
}


@pytest.mark.parametrize("entry", HOSTILE)
def test_a_damaged_record_is_refused(made, tmp_path, entry):
    content = read(made[0] / "group 5.ckpt")
    for value in HOSTILE[entry]:
        hostile = {**content, REPLICAS_KEY: {**content[REPLICAS_KEY], entry: value}}
        with pytest.raises(DamagedGroupError, match="Give another"):
            extracted(hostile, "0")
    with pytest.raises(ReplicaError, match="damaged"):
        fitted(hostile, tmp_path)
    record = dict(content[REPLICAS_KEY])
    del record[entry]
    with pytest.raises(DamagedGroupError):
        extracted({**content, REPLICAS_KEY: record}, "0")


@pytest.mark.parametrize(
    "changed",
    [
        {"optimizer_states": [{}]},
        {"optimizer_states": [{"members": [], "schedulers": []}]},
        {"optimizer_states": [{"members": [1, 2, 3], "schedulers": [[], [], []]}]},
        {"state_dict": {"output.weight": torch.zeros(2, 2)}},
        {"state_dict": {}},
    ],
)
def test_other_damage_is_refused(made, tmp_path, changed):
    content = {**read(made[0] / "group 5.ckpt"), **changed}
    with pytest.raises(ReplicaError):
        fitted(content, tmp_path)


@pytest.mark.parametrize(
    "changed",
    [{"loops": {}}, {"loops": {"fit_loop": {}}}, {"optimizer_states": [{}]}, {"state_dict": {}}, {"global_step": "a"}],
)
def test_members_are_not_taken_out_of_damaged_files(made, changed):
    content = {**read(made[0] / "group 5.ckpt"), **changed}
    with pytest.raises(DamagedGroupError, match="Give another"):
        extracted(content, "0")


class Own(LightningModule):
    """A module with state of its own in checkpoints."""

    def __init__(self, lr=0.1, make=torch.nn.ReLU):
        super().__init__()
        self.save_hyperparameters()
        self.lr, self.net, self.counted = lr, torch.nn.Sequential(torch.nn.Linear(784, 10), make()), 0

    def training_step(self, batch, index):
        return torch.nn.functional.cross_entropy(self.net(batch[0].flatten(1)), batch[1])

    def validation_step(self, batch, index):
        self.counted += 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["counted"] = self.counted

    def on_load_checkpoint(self, checkpoint):
        self.counted = checkpoint["counted"]


@pytest.mark.filterwarnings("ignore:The group's checkpoint leaves out 'hyper_parameters.make' of Own")
def test_what_members_of_ones_own_keep_comes_back(tmp_path):
    cells = [{"lr": 0.1}, {"lr": 0.2, "make": torch.nn.ELU}]
    for epochs in (1, 3):
        group = ReplicaGroup.of(Own, cells)
        trainer = quiet_trainer(max_epochs=epochs, num_sanity_val_steps=0)
        path = tmp_path / "group.ckpt" if epochs == 3 else None
        trainer.fit(group, datamodule=ReplicaDataModule(SmallData()), ckpt_path=path, weights_only=True)
        trainer.save_checkpoint(tmp_path / "group.ckpt")
    assert [member.counted for member in group.members] == [9, 9]
    key, member = extracted(read(tmp_path / "group.ckpt"), "1")
    assert key == "lr=0.2,make=ELU,seed=0"
    assert member["counted"] == 9
    assert member["hyper_parameters"] == {"lr": 0.2}  # a class is no plain data


class Keeping(Own):
    """Keeps what Lightning would save in any type."""

    def on_save_checkpoint(self, checkpoint):
        state = self.net.state_dict()  # an OrderedDict of parts of stacks
        checkpoint["kept"] = {"n": 3, "net": state, "again": [torch.nn.Parameter(torch.ones(2))], "odd": {object()}}

    def on_load_checkpoint(self, checkpoint):
        self.found = copy.deepcopy(checkpoint)


def test_mappings_and_kinds_of_tensors_are_kept_and_what_is_not_is_named(tmp_path):
    group = ReplicaGroup.of(Keeping, [{}, {}])
    trainer = quiet_trainer(max_epochs=1)
    trainer.fit(group, datamodule=ReplicaDataModule(SmallData()))
    weights = [member.net[0].weight.clone() for member in group.members]
    with pytest.warns(UserWarning, match=r"leaves out 'hyper_parameters.make', 'kept.odd' of Keeping.*tensors"):
        trainer.save_checkpoint(tmp_path / "group.ckpt")
    resumed = ReplicaGroup.of(Keeping, [{}, {}])
    path = tmp_path / "group.ckpt"
    quiet_trainer(max_epochs=1).fit(
        resumed, datamodule=ReplicaDataModule(SmallData()), ckpt_path=path, weights_only=True
    )
    for member, weight in zip(resumed.members, weights, strict=True):
        assert member.found["kept"].keys() == {"n", "net", "again"}
        assert torch.equal(member.found["kept"]["net"]["0.weight"], weight)
        assert torch.equal(member.found["kept"]["again"][0], torch.ones(2))
        assert torch.equal(member.found["state_dict"]["net.0.weight"], weight)  # as in the run alone's own hook
        assert (member.found["epoch"], member.found["global_step"]) == (1, EPOCH)


class Scaling(MNISTClassifier):
    """A task with a state of its own in checkpoints."""

    def __init__(self, **options):
        super().__init__(**options)
        self.scale = 1.0

    def training_step(self, batch, index):
        self.scale *= 1.01
        loss = self.mean_loss(*batch) * self.scale
        self.log("train_loss", loss)
        return loss

    def on_save_checkpoint(self, checkpoint):
        super().on_save_checkpoint(checkpoint)
        checkpoint["scale"] = self.scale

    def on_load_checkpoint(self, checkpoint):
        super().on_load_checkpoint(checkpoint)
        self.scale = checkpoint["scale"]


def test_a_class_made_from_a_task_gets_its_own_state_back(tmp_path):
    cells = [{"activation": "prelu", "hidden_layers": 1}, {"activation": "gelu", "hidden_layers": 1}]
    for epochs in (1, 2):
        group = ReplicaGroup.of(Scaling, cells, [0, 1], executor="loop")
        trainer = quiet_trainer(max_epochs=epochs)
        path = tmp_path / "group.ckpt" if epochs == 2 else None
        trainer.fit(group, datamodule=ReplicaDataModule(SmallData()), ckpt_path=path, weights_only=True)
        trainer.save_checkpoint(tmp_path / "group.ckpt")
    for seed, (cell, member) in enumerate(zip(cells, group.members, strict=True)):
        seed_everything(seed, verbose=False)
        alone = Scaling(**cell)
        quiet_trainer(max_epochs=2).fit(alone, datamodule=SmallData())
        assert member.scale == alone.scale
        torch.testing.assert_close(member.state_dict(), alone.state_dict(), rtol=0, atol=0)


class DrawingOtherwise(LightningModule):
    """A module that draws from the global generators of Python and NumPy in training and validation."""

    def __init__(self, lr=0.1):
        super().__init__()
        self.lr, self.net = lr, torch.nn.Linear(784, 10)
        self.register_buffer("seen", torch.zeros(()))

    def training_step(self, batch, index):
        inputs = batch[0].flatten(1) * random.random()
        return torch.nn.functional.cross_entropy(self.net(inputs), batch[1]) * np.random.rand()  # noqa: NPY002

    def validation_step(self, batch, index):
        self.seen = self.seen + random.random() + np.random.randn()  # noqa: NPY002
        self.log("seen", self.seen)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.lr)


class SavingAll(Callback):
    """Saves the group, and a member, within an epoch, and lets another one stop there."""

    def __init__(self, folder):
        self.folder = folder

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        if trainer.global_step == 5:
            module.active[2] = False
            trainer.save_checkpoint(self.folder / "group.ckpt")
            module.save_member(1, self.folder / "1.ckpt")


def test_random_numbers_of_python_and_numpy_go_on(tmp_path):
    def fit(module, data, path=None, callbacks=()):
        trainer = quiet_trainer(max_steps=8, max_epochs=-1, callbacks=list(callbacks))
        trainer.fit(module, datamodule=data, ckpt_path=path, weights_only=True if path else None)
        return module

    def alone(seed, path=None):
        seed_everything(seed, verbose=False)
        return fit(DrawingOtherwise(), SmallData(), path, [ExactResume()]).state_dict()

    def group(path=None, callbacks=()):
        made = ReplicaGroup.of(DrawingOtherwise, [{}] * 3, [0, 1, 2], executor="loop", steps_per_batch=2)
        return fit(made, ReplicaDataModule(SmallData()), path, callbacks)

    wanted = [alone(0), alone(1)]
    for made in (group(callbacks=[SavingAll(tmp_path)]), group(tmp_path / "group.ckpt")):
        assert all(same_content(dict(made.members[r].state_dict()), dict(wanted[r])) for r in (0, 1))
    _, taken = extracted(read(tmp_path / "group.ckpt"), "1")
    torch.save(taken, tmp_path / "taken.ckpt")
    for name in ("1.ckpt", "taken.ckpt"):
        assert same_content(dict(alone(7, tmp_path / name)), dict(wanted[1])), name
    stopped = read(tmp_path / "group.ckpt")[REPLICAS_KEY]["ends"][2]
    assert stopped["others"] == read(tmp_path / "group.ckpt")[REPLICAS_KEY]["others"][2]


def test_files_of_earlier_code_have_no_random_numbers_of_python_and_numpy(made, tmp_path):
    content = read(made[0] / "group 5.ckpt")
    record = {name: value for name, value in content[REPLICAS_KEY].items() if name not in {"others", "figures"}}
    record["ends"] = {
        replica: {name: value for name, value in end.items() if name != "others"}
        for replica, end in record["ends"].items()
    }
    group = fitted({**content, REPLICAS_KEY: record}, tmp_path)
    assert same_content(group.state_dict(), fitted(content, tmp_path).state_dict())
    assert extracted({**content, REPLICAS_KEY: record}, "2")[1]["global_step"] == 2


def test_damaged_random_numbers_of_python_and_numpy_are_refused(made):
    content = read(made[0] / "group 5.ckpt")
    record = content[REPLICAS_KEY]
    for others in (None, [{}], [1] * 3, [{"python": 1, "numpy": 2}] * 3, record["others"][:2]):
        with pytest.raises(DamagedGroupError, match="Give another"):
            extracted({**content, REPLICAS_KEY: {**record, "others": others}}, "0")
    ends = {2: {**record["ends"][2], "others": {"python": None}}}
    with pytest.raises(DamagedGroupError, match="Give another"):
        extracted({**content, REPLICAS_KEY: {**record, "ends": ends}}, "0")


@pytest.mark.parametrize(
    "damage", [{"values": 1.0}, {"values": torch.zeros(2, 7)}, {"values": torch.zeros(0, 3)}, {"options": {}}]
)
def test_damaged_figures_are_refused(made, damage):
    content = read(made[0] / "group 5.ckpt")
    options = {"on_step": False, "on_epoch": True, "reduction": "mean", "batch_size": None}
    figure = {"values": torch.zeros(2, 3), "options": options}
    for given, is_whole in ((figure, True), (figure | damage, False)):
        record = content[REPLICAS_KEY] | {"figures": {"share": given}}
        with nullcontext() if is_whole else pytest.raises(DamagedGroupError, match="its figure 'share' is"):
            extracted({**content, REPLICAS_KEY: record}, "0")


def test_keys():
    group = ReplicaGroup.of(Own, [{"lr": 0.1}, {"lr": 0.1}, {"lr": 0.1, "make": torch.nn.SiLU}], [0, 0, 1])
    assert group.keys == ["lr=0.1,seed=0", "lr=0.1,seed=0~2", "lr=0.1,make=SiLU,seed=1"]

    named = [
        Member(Own(), torch.get_rng_state(), 0, {"a": object()}),
        Member(Own(), torch.get_rng_state(), 3, {}, "a/b c"),
    ]
    assert keys_of(named) == ["a=object,seed=0", "a_b_c"]


@pytest.mark.parametrize("moment", [None, torch.zeros(3), "abc"], ids=["missing", "another shape", "text"])
@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq", "step"])
def test_damaged_moments_are_refused(made, tmp_path, key, moment):
    content = read(made[0] / "group 5.ckpt")
    entry = content["optimizer_states"][0]["members"][1]["state"][0]
    if moment is None:
        del entry[key]
    else:
        entry[key] = moment
    with pytest.raises(ReplicaError, match="Resume with the members that it was saved with, or give another"):
        fitted(content, tmp_path)
