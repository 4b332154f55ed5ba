"""Old and new spellings of options, errors in the words of the command line, and output into a pipe."""

import io
import subprocess
import sys

import pytest
from rich.table import Table

from lit_gelu.cli import export, triton
from lit_gelu.cli.options import add_json, command_parser, current_spelling, in_own_words
from lit_gelu.cli.terminal import PlainConsole

HEAVY = {"torch", "lightning", "onnx", "onnxruntime", "rich", "jsonargparse", "matplotlib"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (["--keep_fp32", "a"], ["--keep-fp32", "a"], ""),
        (["--data_root=x"], ["--data-root=x"], ""),
        (["--int8", "true"], ["--int8"], "--int8 true is deprecated"),
        (["--int8=false", "a.ckpt"], ["a.ckpt"], "write nothing, as without --int8"),
        (["--check", "false"], ["--no-check"], "write --no-check"),
        (["--no-check", "true.ckpt"], ["--no-check", "true.ckpt"], ""),
        (["--", "--keep_fp32"], ["--", "--keep_fp32"], ""),
        (["--folder", "x"], ["--data-root", "x"], "--folder is deprecated"),
    ],
)
def test_old_spellings(old, new, said, capsys):
    assert current_spelling(export.build_parser(), old, {"--folder": "--data-root"}) == new
    error = capsys.readouterr().err
    assert said in error
    assert bool(error) == bool(said)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Give another version=, or keep_config=True.", "Give another --version, or --keep-config."),
        ("Leave warmup= out; device='gpu' does.", "Leave --warmup out; --device gpu does."),
        ("tuning=False", "--no-tuning"),
        ("swish(name=1) and unknown=2 stay", "swish(name=1) and unknown=2 stay"),
        ("Use path=.", "Use --output."),
    ],
)
def test_errors_name_options(message, shown):
    assert in_own_words(message, triton.build_parser(), {"path": "--output"}) == shown


def test_json_takes_no_name_for_a_file():
    parser = command_parser("doctor", "")
    parser.add_argument("names", nargs="*")
    add_json(parser, beside_names=True)
    assert parser.parse_args(["a", "--json"]).json == "-"
    assert parser.parse_args(["--json", "a.json"]).json == "a.json"
    with pytest.raises(SystemExit):
        parser.parse_args(["--json", "gelu"])


def test_a_table_in_a_pipe_is_one_line_a_row_without_lines_and_colours(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    table = Table("name", "text", title="a title")
    table.add_row("[bold]gelu[/bold]\n= exact", "x" * 300)
    PlainConsole(file=file).print(table)
    assert file.getvalue() == f"a title\nname          text\ngelu = exact  {'x' * 300}\n"


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_quick_answers_load_nothing_heavy(option):
    code = (
        f"import sys; from lit_gelu.cli.main import main; code = main([{option!r}]);"
        f"print(code, {HEAVY} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.endswith("0 set()\n")
