"""The command's frame: help, version, unknown commands, and what exit code an error ends in."""

import os
import subprocess
import sys

import pytest

from lit_gelu.cli import main as cli
from lit_gelu.cli.commands import COMMANDS, LIGHTNING_COMMANDS, parser_of
from lit_gelu.cli.main import main
from lit_gelu.errors import LitGeluError


@pytest.mark.parametrize("argv", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_command_and_shows_examples(argv, capsys):
    assert main(argv) == 0
    output = capsys.readouterr().out
    for name in (name for name in COMMANDS if " " not in name):
        assert f"  {name} " in output
        assert COMMANDS[name] in output
    assert "lit-gelu fit --config examples/mnist_gelu.yaml" in output


@pytest.mark.parametrize(("name", "near"), [("fti", "'fit'"), ("exprot", "'export'"), ("--model", "")])
def test_unknown_command(name, near, capsys):
    assert main([name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lit-gelu {name}: no such command.")
    assert near in error
    assert "fit, validate, test, predict, choose, compare, export, parity, optimize, inspect" in error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (LitGeluError("given; accepted; remedy"), 2, "lit-gelu demo: given; accepted; remedy\n"),
        (FileNotFoundError(2, "No such file or directory", "a.ckpt"), 2, "'a.ckpt'"),
        (PermissionError(13, "Permission denied", "runs"), 2, "Permission denied: 'runs'"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(3), 3, ""),
        (SystemExit(None), 0, ""),
        (SystemExit("message"), 1, "message\n"),
    ],
)
def test_exit_codes(error, code, message, monkeypatch, capsys):
    def fail(name, arguments):
        raise error

    monkeypatch.setattr(cli, "run", fail)
    assert main(["demo"]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in LIGHTNING_COMMANDS])
def test_every_other_command_has_help_with_its_name_and_examples(name, capsys):
    assert main([*name.split(), "--help"]) == 0
    assert f"  lit-gelu {name.split()[0]}" in capsys.readouterr().out
    assert "--import" in parser_of(name).format_help()


@pytest.mark.full
@pytest.mark.parametrize("arguments", ["--help", "activations"])
def test_output_that_nobody_reads_any_more(arguments):
    """`lit-gelu activations | head -0`: no stack trace when the pipe is closed, and a code that says so."""
    code = f"import sys; from lit_gelu.cli.main import main; sys.exit(main({arguments.split()}))"
    # Unbuffered, each write would fail by itself, and no flush at the end would be needed.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            stdout=writer, stderr=subprocess.PIPE, env=environment, timeout=600, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == 1


@pytest.mark.parametrize("words", ["fit --config missing.yaml", "export missing.ckpt", "parity missing.onnx"])
def test_a_file_that_is_not_there_is_refused_before_a_command_is_imported(words, monkeypatch, capsys):
    monkeypatch.setattr("importlib.import_module", None)  # torch and Lightning take seconds
    assert main(words.split()) == 2
    assert "missing." in capsys.readouterr().err
