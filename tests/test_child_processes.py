"""The helper that waits for child processes: it lets slow ones end, and ends those that hang."""

import os
import subprocess
import sys
import time
from pathlib import Path

import child_processes
import pytest
from child_processes import end_of, run_command, run_forked, run_python, run_warm, wait_until

FOREVER = "print('begun', flush=True)\nwhile True: pass"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(child_processes, "PATIENCE", 0.01)


def test_output_and_exit_code():
    done = run_python("import sys; print(sys.argv[1]); sys.exit(3)", "given", check=False)
    assert (done.stdout, done.returncode) == ("given\n", 3)


def test_a_warm_interpreter_does_what_a_new_one_does(tmp_path):
    code = "import os, sys\nprint(sys.argv[1], os.getcwd(), os.environ['A'], __name__, 'torch' in sys.modules)\n"
    script = tmp_path / "script.py"
    script.write_text(f"{code}import beside\nsys.exit('no more')")
    (tmp_path / "beside.py").write_text("import atexit\natexit.register(print, 'at the end')")
    done = run_warm(script, "given", cwd=tmp_path, env={**os.environ, "A": "a b"}, check=False)
    assert done.stdout == f"given {tmp_path} a b __main__ True\nat the end\n"
    assert (done.stderr, done.returncode) == ("no more\n", 1)
    assert run_warm("-c", code, "x", env={**os.environ, "A": "b"}).stdout == f"x {Path.cwd()} b __main__ True\n"
    (tmp_path / "numbers.json").write_text("[ 1]")
    assert run_warm("-m", "json.tool", "--compact", "numbers.json", cwd=tmp_path).stdout == "[1]\n"


def test_a_warm_interpreter_goes_on_behind_what_fails_or_hangs(monkeypatch):
    with pytest.raises(pytest.fail.Exception, match=r"ended with 1:(?s:.*)ZeroDivisionError"):
        run_warm("-c", "1 / 0")
    assert run_warm("-c", "import os; os.kill(os.getpid(), 9)", check=False).returncode == -9
    with monkeypatch.context() as context:
        context.setattr(child_processes, "PATIENCE", 0.01)
        with pytest.raises(pytest.fail.Exception, match="it hangs"):
            run_warm("-c", FOREVER)
    assert run_warm("-c", "print(1)").stdout == "1\n"


def test_a_failure_shows_what_the_process_said():
    with pytest.raises(pytest.fail.Exception, match=r"ended with 1:(?s:.*)ZeroDivisionError"):
        run_python("1 / 0")


def test_a_command_that_hangs_is_killed(impatient):
    with pytest.raises(pytest.fail.Exception, match="it hangs"):
        run_command([sys.executable, "-c", FOREVER])


def test_a_process_that_hangs_is_killed(impatient):
    with subprocess.Popen([sys.executable, "-c", FOREVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        with pytest.raises(pytest.fail.Exception, match="it hangs"):
            end_of(process)
    assert process.returncode == -9


@pytest.mark.forks
def test_a_forked_function():
    assert run_forked(sys.exit, 7) == 7


@pytest.mark.forks
def test_a_forked_function_that_hangs_is_killed(impatient):
    with pytest.raises(pytest.fail.Exception, match="it hangs"):
        run_forked(time.sleep, 3600)


def test_what_never_comes_true_is_named(impatient):
    with pytest.raises(pytest.fail.Exception, match="the moon is blue"):
        wait_until(lambda: False, "the moon is blue")


def test_what_comes_true_is_waited_for():
    answers = iter([False, True])
    wait_until(lambda: next(answers), "asked twice")
    assert not list(answers)
