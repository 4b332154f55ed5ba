"""Child processes of tests: a slow machine gets all the time it takes; what hangs is killed, and the test says so."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest
from warm_interpreter import warm_interpreter

#: Seconds. What works ends long before it, under any load; pyproject.toml gives a whole test more.
PATIENCE = 600.0


def _hangs(what: object) -> NoReturn:
    pytest.fail(f"{what} has not ended after {PATIENCE:.0f} s, and was killed: it hangs.")


def run_command(command: list[str], *, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end with its output caught; with ``check``, fail with its errors if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False, **options)
    except subprocess.TimeoutExpired:
        _hangs(command)
    return _checked(done) if check else done


def _checked(done: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    if done.returncode != 0:
        pytest.fail(f"{done.args} ended with {done.returncode}:\n{done.stderr[-5000:]}")
    return done


def run_warm(
    *arguments: str | Path, check: bool = True, cwd: str | Path = ".", env: Mapping[str, str] = os.environ
) -> subprocess.CompletedProcess[str]:
    """`run_command` for a script, ``-m`` and a module, or ``-c`` and code, in a Python that has imported all it needs.

    For what a program does: `run_python` shows what it imports, too.
    """
    words, folder = [str(argument) for argument in arguments], str(Path(cwd).resolve())
    if sys.platform != "linux":
        safe = ["-P"] if words[0].startswith("-") else []  # a script imports what lies beside it
        return run_command([sys.executable, *safe, *words], check=check, cwd=folder, env=env)
    try:
        done = warm_interpreter().run(words, PATIENCE, env, folder)
    except subprocess.TimeoutExpired:
        _hangs(words)
    return _checked(done) if check else done


def run_python(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """`run_command` for Python code in an interpreter of its own, which does not see the current folder."""
    return run_command([sys.executable, "-P", "-c", code, *arguments], **options)


def command_line(*arguments: str) -> list[str]:
    """Return what runs ``lit-gelu`` with these arguments in an interpreter of its own."""
    return [sys.executable, "-P", "-c", "import sys; from lit_gelu.cli.main import main; sys.exit(main())", *arguments]


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen]:
    """Start a process, and end it in any case: none stays behind when a test fails in its midst."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()  # does nothing to one that was waited for


def end_of(process: subprocess.Popen) -> tuple[str, str]:
    """Wait for a process that a test started; return what it still had to say, on both pipes."""
    try:
        return process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        _hangs(process.args)


def run_forked(work: Callable[..., object], *arguments: Any) -> int:
    """Call a function in a forked process: nothing is imported again. Return its exit code, negative for a signal."""
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        process.join()
        _hangs(work)
    return process.exitcode


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Look again and again until something is so; fail, with its description, if it never is."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"Not so after {PATIENCE:.0f} s: {what}.")
        time.sleep(0.05)
