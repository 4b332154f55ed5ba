"""Old and new spellings of options, errors in the words of the command line, and output into a pipe."""

import importlib
import io
import os
import subprocess
import sys

import pytest
from rich.table import Table

from lit_gelu import activations
from lit_gelu.cli import export, triton
from lit_gelu.cli.activations import show
from lit_gelu.cli.commands import COMMANDS, FIT
from lit_gelu.cli.options import current_spelling, in_own_words
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


OPTIONS = {"path": "--output"} | {name: f"--{name}" for name in ("seed", "tolerance", "interval")}


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("Give another version=, or tuning=True.", "Give another --version, or --tuning."),
        ("Leave warmup= out; device='gpu' does.", "Leave --warmup out; --device gpu does."),
        ("tuning=False", "--no-tuning"),
        ("swish(name=1) and unknown=2 stay", "swish(name=1) and unknown=2 stay"),
        ("Use path=.", "Use --output."),
        ("seed=-1 is not accepted", "--seed -1 is not accepted"),
        ("tolerance=-1e-05 is not accepted", "--tolerance -1e-05 is not accepted"),
        ("interval=(3.0, -3.0) is not accepted", "--interval 3.0 -3.0 is not accepted"),
        ("pass tuning=['First'].", "pass --tuning First."),
        ("pass tuning=['First', 'Second'].", "pass --tuning First Second."),
    ],
)
def test_errors_name_options(message, shown):
    assert in_own_words(message, triton.build_parser(), OPTIONS) == shown


@pytest.mark.parametrize(
    ("words", "file", "names"),
    [
        (["gelu", "--json"], "-", ["gelu"]),
        (["--json", "gelu", "silu"], "-", ["gelu", "silu"]),
        (["--json", "a.json", "gelu"], "a.json", ["gelu"]),
        (["--json=a", "gelu"], "a", ["gelu"]),
        (["--json", "--import", "m", "gelu"], "-", ["gelu"]),
        (["gelu"], None, ["gelu"]),
    ],
)
def test_json_takes_no_name_for_a_file(words, file, names, capsys):
    parser = show.build_parser()
    found = parser.parse_args(current_spelling(parser, words, {}))
    assert (found.json, found.names) == (file, names)
    assert not capsys.readouterr().err


@pytest.mark.parametrize("module", [module for module in COMMANDS.values() if module != FIT])
def test_no_help_shows_an_object_of_python(module):
    assert " at 0x" not in importlib.import_module(module).build_parser().format_help()


def test_a_table_in_a_pipe_is_one_line_a_row_without_lines_and_colours(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    file = io.StringIO()
    table = Table("name", "text", title="a title")
    table.add_row("[bold]gelu[/bold]\n= exact", "x" * 300)
    PlainConsole(file=file).print(table)
    assert file.getvalue() == f"a title\nname          text\ngelu = exact  {'x' * 300}\n"


@pytest.mark.full
def test_a_real_pipe_gets_one_line_a_row_whatever_the_environment_says_of_colours():
    environment = {**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1", "COLUMNS": "40", "LIT_GELU_PLUGINS": "0"}
    done = subprocess.run(
        f"{sys.executable} -P -m lit_gelu activations list | cat",
        shell=True, capture_output=True, text=True, env=environment, timeout=600, check=True,
    )  # fmt: skip
    title, heads, *rows = done.stdout.splitlines()
    assert "\x1b" not in done.stdout
    assert "\u2501" not in done.stdout  # the lines around rich's tables
    assert title == f"{len(rows)} activations"
    assert heads.split()[0] == "activation"
    assert [row.split()[0] for row in rows] == activations.list_activations()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals on Windows")
@pytest.mark.parametrize("no_color", ["1", ""])
def test_a_terminal_gets_colours_unless_no_color_is_set(no_color):
    code = "from lit_gelu.cli.terminal import console_for_output; console_for_output().print('[red]word[/red]')"
    reader, terminal = os.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": no_color}
    try:
        subprocess.run([sys.executable, "-P", "-c", code], stdout=terminal, env=environment, timeout=600, check=True)
        output = os.read(reader, 1000)
    finally:
        os.close(terminal)
        os.close(reader)
    assert output == (b"word\r\n" if no_color else b"\x1b[31mword\x1b[0m\r\n")


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_quick_answers_load_nothing_heavy(option):
    code = (
        f"import sys; from lit_gelu.cli.main import main; code = main([{option!r}]);"
        f"print(code, {HEAVY} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout.endswith("0 set()\n")
