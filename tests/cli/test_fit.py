"""`lit-gelu fit`, `validate`, `test`, `predict`: defaults, configurations, round trips, mistakes."""

import csv
import inspect
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from child_processes import command_line, end_of, run_command, run_warm, started, wait_until
from cli_helpers import FAST, forget_seeds, save_untrained
from lightning.pytorch import LightningDataModule, LightningModule

import lit_gelu.data
import lit_gelu.tasks
from lit_gelu.cli.main import main
from lit_gelu.tasks import MNISTClassifier


def concrete(package, base):
    """The names of the classes of a package that the command line can make."""
    members = {name: member for name, member in vars(package).items() if inspect.isclass(member)}
    return [name for name, member in members.items() if issubclass(member, base) and not inspect.isabstract(member)]


TASKS, DATA = concrete(lit_gelu.tasks, LightningModule), concrete(lit_gelu.data, LightningDataModule)
EXAMPLES = Path(__file__).parents[2] / "examples"
SHORT = [*FAST, "--trainer.max_epochs=1", "--model.hidden_layers=1"]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Runs write into the working folder, and seeding sets environment variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    monkeypatch.delenv("PL_SEED_WORKERS", raising=False)
    yield
    forget_seeds()


def metrics(folder: Path) -> dict[str, float]:
    """The last value of every column of metrics.csv."""
    with (folder / "metrics.csv").open() as file:
        return {name: float(value) for row in csv.DictReader(file) for name, value in row.items() if value}


def test_fit_alone_trains_the_classifier_on_the_digits(tmp_path, capsys):
    assert main(["fit", *FAST, "--trainer.max_epochs=1"]) == 0
    output = capsys.readouterr().out
    run = tmp_path / "runs/lightning_logs/version_0"
    (path,) = run.rglob("*.ckpt")
    assert f"Checkpoint: {path.relative_to(tmp_path)}" in output
    assert "Logs: runs/lightning_logs/version_0" in output
    assert metrics(run)["val_error"] < 0.85  # 90 % is chance
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["class_path"] == "lit_gelu.tasks.MNISTClassifier"
    assert config["data"]["class_path"] == "lit_gelu.data.DigitsData"
    assert config["trainer"]["default_root_dir"] == "runs"
    assert MNISTClassifier.load_from_checkpoint(path).hparams["activation"] == "gelu(approximate='tanh')"


SPECS = ["{name: gelu, approximate: tanh}", "{class_path: torch.nn.ELU, init_args: {alpha: 0.5}}"]


@pytest.mark.parametrize("spec", SPECS)
def test_print_config_round_trip(spec, tmp_path, capsys):
    assert main(["fit", f"--model.activation={spec}", "--print_config"]) == 0
    first = capsys.readouterr().out
    (tmp_path / "config.yaml").write_text(first)
    assert main(["fit", "--config=config.yaml", "--print_config"]) == 0
    assert capsys.readouterr().out == first
    assert yaml.safe_load(first)["model"]["init_args"]["activation"] == yaml.safe_load(spec)


@pytest.fixture(scope="module")
def plain_checkpoint(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "last.ckpt"
    save_untrained(path, "elu(alpha=0.5)", learning_rate=0.002, keep=0.75, hidden_layers=2)
    return path


def test_a_checkpoint_of_a_plain_trainer(plain_checkpoint, tmp_path):
    assert main(["test", *FAST, f"--ckpt_path={plain_checkpoint}"]) == 0
    run = tmp_path / "runs/lightning_logs/version_0"
    settings = yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]
    assert (settings["activation"], settings["learning_rate"], settings["keep"]) == ("elu(alpha=0.5)", 0.002, 0.75)
    model = MNISTClassifier.load_from_checkpoint(plain_checkpoint, map_location="cpu", weights_only=True).eval()
    data = lit_gelu.data.DigitsData()
    data.setup("test")
    batches = [(model(images).argmax(1) != labels).float() for images, labels in data.test_dataloader()]
    assert metrics(run)["test_error"] == pytest.approx(torch.cat(batches).mean().item(), abs=1e-6)


@pytest.mark.parametrize("word", ["--model=TweetTagger", "--model.keep=0.5", "--model.init_args.hidden_layers=3"])
def test_arguments_beside_a_checkpoint_that_holds_them_are_refused(word, plain_checkpoint, capsys):
    assert main(["test", *FAST, word, f"--ckpt_path={plain_checkpoint}"]) == 2
    assert capsys.readouterr().err.startswith("lit-gelu test: ")


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_random_weights_are_not_measured(command, tmp_path):
    words = {"validate": [], "test": ["--ckpt_path=last"], "predict": ["--ckpt_path=best"]}[command]
    assert main([command, *FAST, *words]) == 2
    assert not list(tmp_path.rglob("metrics.csv"))


@pytest.mark.parametrize(
    "words",
    [
        ["--model.activation=gelo"], ["--model.keep=0"], ["--data=MNISTData", "--data.root=nowhere"],
        ["--trainer.accelerator=abacus"], ["--trainer.epochs=5"], ["--seed_everything=-1"], ["--config=wrong.yaml"],
        ["--trainer.callbacks=ActivationSwap", "--trainer.callbacks.swaps={relu: gelu}"],
        ["--import=nowhere_at_all"], ["--ckpt_path=nowhere.ckpt"], ["--ckpt_path=weights.pt"],
    ],
)  # fmt: skip
def test_a_mistake_is_exit_code_two_without_a_stack_trace_or_usage(words, tmp_path, capsys):
    torch.save(MNISTClassifier(hidden_layers=1).state_dict(), tmp_path / "weights.pt")
    (tmp_path / "wrong.yaml").write_text("modle:\n  class_path: MNISTClassifier\n")
    assert main(["fit", *SHORT, *words]) == 2
    error = capsys.readouterr().err
    assert "lit-gelu fit: " in error
    assert "Traceback" not in error
    assert "usage:" not in error


def test_a_folder_that_holds_a_run_is_not_overwritten(plain_checkpoint, tmp_path):
    arguments = [*SHORT[:3], "--trainer.logger=false", "--trainer.enable_checkpointing=false", "--trainer.max_epochs=1"]
    assert main(["fit", *arguments]) == 0
    first = (tmp_path / "runs/config.yaml").read_bytes()
    assert main(["fit", *arguments, "--model.activation=relu"]) == 2
    for command in ("test", "validate"):
        assert main([command, f"--ckpt_path={plain_checkpoint}", "--trainer.logger=false", *FAST[:3]]) == 0
    assert (tmp_path / "runs/config.yaml").read_bytes() == first


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_examples_parse_and_their_comments_are_true(path, capsys):
    assert main(["fit", f"--config={path}", "--print_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)
    assert config["trainer"]["logger"]["init_args"]["name"] == path.stem
    text = path.read_text()
    assert f"lit-gelu fit  --config examples/{path.name}" in text
    assert f"--ckpt_path runs/{path.stem}/version_0/checkpoints/last.ckpt" in text


@pytest.mark.parametrize("name", [*TASKS, *DATA])
def test_a_class_chosen_by_name_has_its_own_defaults(name, capsys):
    """And not those of the default model and data, where these have arguments of the same name."""
    part, package = ("model", lit_gelu.tasks) if name in TASKS else ("data", lit_gelu.data)
    assert main(["fit", f"--{part}={name}", "--print_config"]) == 0
    config = yaml.safe_load(capsys.readouterr().out)[part]
    assert config["class_path"] == f"{package.__name__}.{name}"
    parameters = inspect.signature(getattr(package, name)).parameters
    for argument, value in config.get("init_args", {}).items():
        default = parameters[argument].default
        assert value == (list(default) if isinstance(default, tuple) else default), argument


@pytest.mark.full
def test_the_example_of_a_swap_learns(tmp_path):
    """It is at chance, 90 %, before training, and goes on falling after the swap at the third epoch."""
    config = EXAMPLES / "digits_relu_to_gelu.yaml"
    assert main(["fit", f"--config={config}", *FAST[:3]]) == 0
    run = tmp_path / "runs/digits_relu_to_gelu"
    with (run / "version_0/metrics.csv").open() as file:
        errors = {int(row["epoch"]): float(row["val_error"]) for row in csv.DictReader(file) if row["val_error"]}
    assert list(errors) == [0, 1, 2, 3, 4, 5]
    assert errors[1] < 0.25
    assert errors[5] < 0.6 * errors[1]
    checkpoint = run / "version_0/checkpoints/last.ckpt"
    assert main(["test", f"--config={config}", f"--ckpt_path={checkpoint}", *FAST[:3]]) == 0
    assert metrics(run / "version_1")["test_error"] < 0.12


@pytest.mark.full
def test_script_example_runs_as_it_stands(tmp_path):
    done = run_warm(EXAMPLES / "train_digits.py", "elu(alpha=0.5)", cwd=tmp_path)
    error = float(re.search(r"elu\(alpha=0\.5\): test error (\d+\.\d+)%", done.stdout)[1])
    assert error < 8


@pytest.mark.full
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_in_order(sent, code, tmp_path):
    arguments = [*FAST, "--trainer.max_epochs=100000", "--model.hidden_layers=1"]
    checkpoints = tmp_path / "runs/lightning_logs/version_0/checkpoints"
    with started(command_line("fit", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_until(lambda: list(checkpoints.glob("*.ckpt")) or process.poll() is not None, "there is a checkpoint")
        process.send_signal(sent)
        output, error = end_of(process)
    assert process.returncode == code
    assert "Traceback" not in error
    (named,) = re.findall(r"^Checkpoint: (.*)$", output, re.MULTILINE)
    assert MNISTClassifier.load_from_checkpoint(tmp_path / named, map_location="cpu", weights_only=True)


@pytest.mark.full
def test_two_ranks(tmp_path):
    """Lightning starts the second rank as a second process with the same arguments."""
    script = tmp_path / "lit-gelu"
    script.write_text(
        "import sys\nimport torch\nfrom lit_gelu.cli.main import main\n"
        "code = main()\nassert not torch.distributed.is_initialized()\nsys.exit(code)\n"
    )
    arguments = [*SHORT, "--trainer.strategy=ddp", "--trainer.devices=2", "--model.keep=0.5"]
    done = run_command([sys.executable, "-P", str(script), "fit", *arguments])
    assert done.stdout.count("Checkpoint: ") == 1
