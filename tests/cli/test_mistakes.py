"""Mistakes that people make on the command line, and the sentence that each is answered with."""

import re
import shlex

import pytest

from lit_gelu.cli.main import main
from lit_gelu.cli.mistakes import CommandParser, as_options, in_plain_words, sub_command

UNION = """Parser key "trainer.callbacks":

  - Expected a path but {name} either not accessible or invalid
  - Does not validate against any of the Union subtypes
  Subtypes: [list[lightning.pytorch.callbacks.callback.Callback], <class 'NoneType'>]
  Errors:
    - {error}
    - Expected a <class 'NoneType'>
  Given value type: <class 'str'>
  Given value: {name}"""


@pytest.fixture
def parser():
    made = CommandParser(prog="lit-gelu export")
    made.add_argument("source")
    made.add_argument("--opset", type=int | None)
    made.add_argument("--mode")
    made.add_argument("--output")
    made.add_argument("--target", choices=("portable", "ort-cpu"))
    return made


@pytest.mark.parametrize(
    ("message", "given", "sentence"),
    [
        ("unrecognized arguments: --opst 3", ["--opst", "3"], "--opst is no option. Did you mean --opset?"),
        ("unrecognized arguments: --folder x", ["--folder", "x"], "--folder is no option. Did you mean --output?"),
        ("unrecognized arguments: again", ["again"], "'again' is not expected here: options begin with --."),
        ("the following arguments are required: source", [], "SOURCE is required."),
        ("argument --opset: expected one argument", ["a", "--opset"], "--opset needs a value."),
        (
            "argument --target: invalid choice: 'ort-gpu' (choose from 'portable', 'ort-cpu')",
            [],
            "--target: invalid choice: 'ort-gpu'. Give portable or ort-cpu. Did you mean ort-cpu?",
        ),
        (
            "Parser key \"model.rate\":\n  Expected a <class 'float'>. Got value: fast",
            ["--model.rate=fast"],
            "--model.rate takes a number, not 'fast'.",
        ),
        (
            UNION.format(
                name="mymod.Stop", error="Problem with given class_path 'mymod.Stop':\n      No module named 'mymod'"
            ),
            ["--trainer.callbacks+", "mymod.Stop"],
            "--trainer.callbacks+: mymod.Stop cannot be imported (No module named 'mymod'). Modules are looked for in "
            "the current folder and among those installed.",
        ),
        ("Option 'depht' is not accepted", [], "'depht' is no option of what the configuration configures."),
        ("Something new", [], "Something new."),
    ],
)
def test_a_message_in_plain_words(message, given, sentence, parser):
    assert in_plain_words(message, given, parser) == sentence


@pytest.mark.parametrize(("words", "sentence"), [("--opset many x", "--opset takes a whole number, not 'many'.")])
def test_a_parser_says_the_sentence_and_where_to_read_on(words, sentence, parser, capsys):
    with pytest.raises(SystemExit, match="2"):
        parser.parse_args(shlex.split(words))
    assert capsys.readouterr().err == f"lit-gelu export: {sentence} See lit-gelu export --help.\n"


def test_only_an_argument_that_was_given_becomes_an_option():
    assert as_options("keep=2 is wrong", ["--model.keep=2"]) == "--model.keep 2 is wrong"
    assert as_options("keep=2 is wrong", ["--model.width=2"]) == "keep=2 is wrong"
    assert as_options("wrong", ["--model.keep=2"]) == "wrong"


def test_the_nearest_sub_command():
    assert sub_command("activations", "sohw") == "lit-gelu activations show"
    assert sub_command("activations", "gelu") == ""
    assert sub_command("export", "shwo") == ""


AT_MOST_1 = "--model.keep 2.0 is not accepted. Give a probability above 0 and at most 1"
UNKNOWN = "'activaton' is no option of what the configuration configures. Did you mean activation?"
TABLE = {
    "fti": "lit-gelu fti: no such command. Did you mean 'fit'?",
    "fit --model.activaton gelu": "--model.activaton is no option. Did you mean --model.activation?",
    "fit --activation gelu": "--activation is no option. Did you mean --model.activation?",
    "fit --trainer.acclerator gpu": "--trainer.acclerator is no option. Did you mean --trainer.accelerator?",
    "fit --model.activation gleu": "Unknown activation 'gleu'. Did you mean",
    "fit --model.learning_rate fast": "--model.learning_rate takes a number, not 'fast'.",
    "fit --trainer.max_epochs three": "--trainer.max_epochs takes a whole number, not 'three'.",
    "fit --model.activation": "--model.activation needs a value.",
    "fit --model.keep 2": AT_MOST_1,
    "fit --seed_everything -1 --trainer.fast_dev_run true": "--seed_everything: -1 is not in bounds",
    "fit --config empty.yaml": "The configuration 'empty.yaml' holds no options. Give a YAML file",
    "fit --config binary.yaml": "The configuration 'binary.yaml' is no YAML that can be read: 'utf-8' codec",
    "test --ckpt_path best": "--ckpt_path best has no fit before it in this command. Give the path of one.",
    "demo --seed -1 --epochs 2": "--seed -1 is not accepted. Give an integer from 0 to 4294967295.",
    "curvature a.ckpt --data DigitsData --quantities activations --seed -1": "--seed -1 is not accepted. Give",
    "choose --activations gelu --mode foo": "--mode takes min or max, not 'foo'.",
    "activations plot gelu -o x.png --interval nan 3": "--interval takes a number, not 'nan'.",
    "activations plot gelu -o x.png --interval 3 -1e-3": "--interval 3.0 -0.001 is not accepted",
    "export .": "'.' is a folder. Give a checkpoint in it, or the class of a model.",
    "report /dev/null": "'/dev/null' is neither a file nor a folder.",
    "fit --config missing.yaml": "--config: there is no file 'missing.yaml'.",
    "fit --config unknown.yaml": UNKNOWN,
    "fit --config trainer.yaml": "'trainer.max_epoch' is no option of what the configuration configures. Did you mean "
    "trainer.max_epochs?",
    "fit --model NoSuchModel": "--model: there is no class NoSuchModel. There are CIFAR100WideResNet, CIFAR10ConvNet,",
    "fit --model NoSuchNet": "Your own class is named with its module: my_module.NoSuchNet.",
    "fit --data MNIST": "--data: there is no class MNIST. Did you mean MNISTData?",
    "fit --data MNISTDataModule": "--data: there is no class MNISTDataModule. Did you mean MNISTData?",
    "fit --model lit_gelu.tasks.MNISTClasifier": (
        "--model: there is no MNISTClasifier in lit_gelu.tasks. Did you mean lit_gelu.tasks.MNISTClassifier?"
    ),
    "fit --config callback.yaml": (
        "there is no ActivationSwop in lit_gelu.callbacks. Did you mean lit_gelu.callbacks.ActivationSwap?"
    ),
    "fit --model mymod.Net": "--model: mymod.Net cannot be imported (No module named 'mymod').",
    "fit --trainer.callbacks+ ActivationSwop": "there is no class ActivationSwop. Did you mean ActivationSwap?",
    "fit --trainer.callbacks+ ActivationSwap": (
        "ActivationSwap needs swaps. Give it behind the class: --trainer.callbacks+ ActivationSwap "
        "--trainer.callbacks.swaps VALUE."
    ),
    "fit --trainer.callbacks+ ActivationSwap --trainer.callbacks.swaps relu": (
        "--trainer.callbacks.swaps takes a mapping, such as '{relu: gelu}', not 'relu'."
    ),
    "fit --trainer.callbacks+ MyCallback": "Your own class is named with its module: my_module.MyCallback.",
    "fit gelu": "'gelu' is not expected here: options begin with --.",
    "test --ckpt_path nowhere.ckpt": "Checkpoint file not found: nowhere.ckpt",
    "export": "SOURCE is required.",
    "export nowhere.ckpt": "There is no checkpoint 'nowhere.ckpt'. Give the path of a file that lit-gelu fit wrote.",
    "parity nowhere.onnx": "--ckpt is required.",
    "bench nowhere.onnx": "There is no file 'nowhere.onnx'. Write it with lit-gelu export.",
    "activations sohw gelu": "Or did you mean lit-gelu activations show?",
    "activations plot gelu": "--output is required.",
    "doctor --jsno": "--jsno is no option. Did you mean --json?",
}


@pytest.mark.full
@pytest.mark.parametrize("words", TABLE)
def test_a_mistake_has_its_remedy(words, tmp_path, monkeypatch, capsys):
    (tmp_path / "unknown.yaml").write_text("model:\n  class_path: MNISTClassifier\n  init_args:\n    activaton: gelu\n")
    (tmp_path / "trainer.yaml").write_text("trainer:\n  max_epoch: 3\n")
    swop = "trainer:\n  callbacks:\n  - class_path: lit_gelu.callbacks.ActivationSwop\n"
    (tmp_path / "empty.yaml").touch()
    (tmp_path / "binary.yaml").write_bytes(b"\x80\x02\x8a")
    (tmp_path / "callback.yaml").write_text(swop)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(words)) == 2
    error = capsys.readouterr().err
    assert TABLE[words] in error
    assert "Traceback" not in error
    assert error.count("\n") == 1
    assert re.match(r"lit-gelu [\w ]+: ", error)
