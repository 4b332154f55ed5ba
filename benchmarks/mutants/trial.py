"""Whether the tests notice a fault: they run in a forked process in which one module has it.

The process that forks has imported torch and the other libraries already, so a trial costs what the tests cost. Files
on disk stay as they are; what a test starts in an interpreter of its own does not see the fault.
"""

import contextlib
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType

import pytest

HANGS = "hangs"


class _Faulty(SourceFileLoader):
    """Loads another source than the file's."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - there is one
        return compile(self.source, self.path, "exec")


class _Finder(MetaPathFinder):
    """Finds one module with its fault, and no other."""

    def __init__(self, loader: _Faulty) -> None:
        self.loader = loader

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        if fullname != self.loader.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.loader.path, loader=self.loader)


def run_tests(
    name: str, path: str, source: str, tests: Sequence[str], cpu_seconds: int, output: str = os.devnull
) -> str:
    """Run tests with a module of another source.

    Args:
        name: The module, as it is imported.
        path: Its file.
        source: What it is to hold.
        tests: Test files, or folders.
        cpu_seconds: After how much time of the processor it hangs. If it only waits, it hangs after 20 times as long.
        output: The file that gets what pytest prints.

    Returns:
        ``"passed"``, ``"failed"``, or ``"hangs"``.

    Raises:
        RuntimeError: If pytest found no tests to run.
    """
    child = os.fork()
    if child == 0:
        _in_child(_Finder(_Faulty(name, path, source)), tests, cpu_seconds, output)
    status = _ended(child, 20.0 * cpu_seconds)
    if status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) in {signal.SIGXCPU, signal.SIGKILL}):
        return HANGS
    code = os.waitstatus_to_exitcode(status)
    if code in {pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.USAGE_ERROR}:
        raise RuntimeError(f"pytest has no tests to run: {' '.join(tests)}")
    return "passed" if code == 0 else "failed"


def _in_child(finder: _Finder, tests: Sequence[str], cpu_seconds: int, output: str) -> None:
    """Run pytest, and end the process with its exit code."""
    os.setsid()  # so that what it leaves behind ends with it
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 5))
    sys.meta_path.insert(0, finder)
    code = 1
    try:
        with open(output, "w") as file:  # noqa: PTH123
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = int(
            pytest.main([
                "-x",
                "-q",
                "--assert=plain",
                "-p",
                "no:cacheprovider",
                "-o",
                "timeout=0",
                "-m",
                "not full",
                *tests,
            ])
        )
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _ended(child: int, seconds: float) -> int | None:
    """Wait for a process; kill it and what it started after some time. Return its status, ``None`` if it was killed."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return status
