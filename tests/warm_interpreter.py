"""A Python that has imported torch, Lightning and lit_gelu forks for every command: imports take it 7 seconds once.

For tests of what a program does. What a program imports, and how its interpreter starts and is stopped, is seen in
`child_processes.run_python` and `started`.
"""

import array
import atexit
import functools
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

IMPORTED = (
    "torch.onnx", "lightning.pytorch", "onnxruntime", "onnxscript", "matplotlib.pyplot", "scipy.stats",
    "lit_gelu.callbacks", "lit_gelu.cli.main", "lit_gelu.export", "lit_gelu.tasks",
)  # fmt: skip
# Longer than any message: a command with its environment.
LONGEST = 1 << 20


class WarmInterpreter:
    """The process that forks, started with some variables of the environment that its imports look at."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            theirs.set_inheritable(True)
            command = [sys.executable, "-P", "-W", "ignore", __file__, str(theirs.fileno())]
            environment = {**os.environ, **variables}
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        atexit.register(self._end)

    def run(self, arguments: list[str], patience: float, environment: Mapping[str, str], folder: str) -> Any:
        """Run Python with these arguments: ``-c`` and code, ``-m`` and a module, or a script; then its own."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            message = json.dumps([arguments, dict(environment), folder]).encode()
            socket.send_fds(self._socket, [message], [out.fileno(), err.fileno()])
            pid = int(self._socket.recv(LONGEST))
            self._socket.settimeout(patience)
            try:
                code = int(self._socket.recv(LONGEST))
            except TimeoutError:
                os.kill(pid, 9)
                self._socket.settimeout(None)
                self._socket.recv(LONGEST)
                raise subprocess.TimeoutExpired(arguments, patience) from None
            finally:
                self._socket.settimeout(None)
            texts = [file.seek(0) or file.read() for file in (out, err)]
        return subprocess.CompletedProcess(arguments, code, *texts)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def warm_interpreter(**variables: str) -> WarmInterpreter:
    """Return the one of this process that started with these variables."""
    return WarmInterpreter(variables)


def _serve(connection: socket.socket) -> NoReturn:
    """Fork for each command, until nobody is there to ask."""
    while True:
        message, files, *_ = socket.recv_fds(connection, LONGEST, 2)
        if not message:
            os._exit(0)  # Triton's libraries would tell at the end of what they leak
        pid = os.fork()
        if not pid:
            connection.close()
            _become(files, *json.loads(message))
        for file in files:
            os.close(file)
        connection.send(str(pid).encode())
        connection.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


def _become(files: array.array, arguments: list[str], environment: dict[str, str], folder: str) -> NoReturn:
    """Run a command in the place of this process, and end as an interpreter does."""
    code = 1
    try:
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        warnings.resetwarnings()
        code = _exit_code_of(arguments)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _exit_code_of(arguments: list[str]) -> int:
    try:
        _run(arguments)
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        sys.stderr.write(f"{error.code}\n")
        return 1
    except BaseException:  # noqa: BLE001  as an interpreter does
        traceback.print_exc()
        return 1
    return 0


def _run(arguments: list[str]) -> None:
    kind, *rest = arguments
    if kind == "-c":
        code, *words = rest
        sys.argv[:] = ["-c", *words]
        main = type(sys)("__main__")
        sys.modules["__main__"] = main
        exec(compile(code, "<string>", "exec"), main.__dict__)
    elif kind == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = arguments
        sys.path.insert(0, str(Path(kind).parent))
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as server:
        _serve(server)
