"""Where a report is written to."""

import os

import pytest

from lit_gelu.cli.terminal import write_text


def test_a_file_and_standard_output(tmp_path, capsys):
    for target in (str(tmp_path / "report.md"), "-"):
        write_text("a\nb\n\n", target)
    assert (tmp_path / "report.md").read_text() == capsys.readouterr().out == "a\nb\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_takes_the_text_and_stays(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text("a", str(tmp_path / "pipe"))
        assert os.read(reader, 9) == b"a\n"
    finally:
        os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
