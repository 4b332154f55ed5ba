"""Draw a digit in the browser, and a net of one's own reads it: ``python examples/web/serve.py``.

Trains `MNISTClassifier` (on MNIST where ``LIT_GELU_DATA`` names the folder that holds it, else on the bundled digits,
and on digits drawn by strokes beside either), calibrates its confidence, exports it with its preprocessing inside, puts
page, file and onnxruntime-web in one folder and serves that on this machine. npm is needed once, to fetch
onnxruntime-web; after that no network is.
"""

import argparse
import contextlib
import functools
import io
import os
import shutil
import socket
import subprocess
import sys
import threading
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

import torch
from calibration import calibrate_
from drawn_data import DrawnData
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from torch import Tensor
from typing_extensions import override

from lit_gelu.data import DigitsData, MNISTData
from lit_gelu.errors import LitGeluError
from lit_gelu.export import export_onnx
from lit_gelu.tasks import MNISTClassifier

HERE = Path(__file__).parent
PAGE = ("index.html", "style.css", "page.js", "model.js", "drawing.js")
RUNTIME = HERE / "node_modules" / "onnxruntime-web" / "dist"
RUNTIME_FILES = (
    "ort.wasm.min.mjs",  # the smaller build, for the CPU alone
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)


class WebExampleError(LitGeluError):
    """What the example needs is not here."""


class Handler(SimpleHTTPRequestHandler):
    """Files with the types that browsers ask for, and the headers without which a page gets no threads."""

    timeout = 30  # seconds that a connection may be silent, and that a whole request may take
    extensions_map = {  # noqa: RUF012 - as the base class has it
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",  # Python 3.11 does not know it, and a module of another type is refused
        ".js": "text/javascript",
        ".wasm": "application/wasm",
        ".onnx": "application/octet-stream",
    }

    def handle_one_request(self) -> None:
        """Answer one request; end a connection on which it is not all here in time, as where bytes drip in."""
        timer = threading.Timer(self.timeout, self.give_up)
        timer.start()
        try:
            super().handle_one_request()
        finally:
            timer.cancel()

    def give_up(self) -> None:
        """Let the thread that waits for this connection go on."""
        with contextlib.suppress(OSError):  # it is closed already
            self.connection.shutdown(socket.SHUT_RDWR)

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        """Answer with a file of the site; folders are not listed, and links do not lead out of it.

        Returns:
            The file, or ``None`` where an error was sent.
        """
        try:
            path = Path(self.translate_path(self.path)).resolve()
            path = (path / "index.html").resolve() if path.is_dir() else path
            is_served = path.is_file() and path.is_relative_to(Path(self.directory).resolve())
        except (ValueError, OSError, RuntimeError):  # NUL, a name that is too long, links in a circle
            is_served = False
        if not is_served:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def end_headers(self) -> None:
        """Isolate the page (WebAssembly's threads share memory, which is given to isolated pages alone)."""
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


class Server(ThreadingHTTPServer):
    """A web server on this machine alone."""

    request_queue_size = 256  # connections that may wait for their thread; socketserver's 5 resets the sixth

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that went away; what else goes wrong keeps its stack trace."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Slowdown(Callback):
    """Lowers the learning rate in a straight line to 0 in the second half of training."""

    @override
    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: tuple[Tensor, Tensor], batch_idx: int
    ) -> None:
        """Set the learning rate of this step."""
        left = 1 - trainer.global_step / trainer.estimated_stepping_batches
        for group in trainer.optimizers[0].param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * min(1.0, 2 * left)


def train(data: DrawnData, activation: str, epochs: int, folder: Path) -> MNISTClassifier:
    """Train a net, calibrate its confidence, and write ``classifier.ckpt``.

    Args:
        data: What to train on.
        activation: Any activation by name.
        epochs: How often it sees the training set.
        folder: Where the checkpoint goes.

    Returns:
        The trained net.
    """
    seed_everything(0)
    model = MNISTClassifier(activation=activation)
    print(f"Training on {type(data.scanned).__name__} and drawings, a minute or two on a CPU ...", flush=True)
    torch.set_num_threads(1)  # so small a net is many times slower with threads that contend
    trainer = Trainer(
        max_epochs=epochs, devices=1, logger=False, enable_checkpointing=False, enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(), callbacks=[Slowdown()],
    )  # fmt: skip
    trainer.fit(model, datamodule=data)
    temperature = calibrate_(model, *data.val_set.tensors)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    trainer.save_checkpoint(folder / "classifier.ckpt")
    name = type(data.scanned).__name__
    print(f"{model.activation_spec} on {name} and drawings: test error {result['test_error']:.2%} of {name}'s test set")
    print(f"logits divided by {temperature:.2f}, so that the confidence is right on drawings that it did not see")
    return model


def build_site(
    model: MNISTClassifier, data: DigitsData | MNISTData, site: Path, approximate: str, lowering: str
) -> None:
    """Put page, file and runtime in one folder, which any web server can serve.

    Args:
        model: The trained net.
        data: The data whose preprocessing becomes a part of the file.
        site: The folder.
        approximate: Which form every GELU takes.
        lowering: Which operators activations become.
    """
    install_runtime()
    (site / "ort").mkdir(parents=True, exist_ok=True)
    for name in PAGE:
        shutil.copyfile(HERE / name, site / name)
    for name in RUNTIME_FILES:
        shutil.copyfile(RUNTIME / name, site / "ort" / name)
    preprocessing = data.preprocessing()
    print(
        export_onnx(model, site / "model.onnx", approximate=approximate, lowering=lowering, preprocessing=preprocessing)
    )


def install_runtime() -> None:
    """Fetch onnxruntime-web by npm, unless it is there.

    Raises:
        WebExampleError: If it cannot be fetched.
    """
    if all((RUNTIME / name).is_file() for name in RUNTIME_FILES):
        return
    npm = shutil.which("npm")
    if npm is None:
        raise WebExampleError(
            f"onnxruntime-web is not in {HERE / 'node_modules'}, and npm, which fetches it, is missing."
        )
    print("Fetching onnxruntime-web (npm ci) ...")
    command = [npm, "ci"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)  # noqa: S603 - a fixed command
    if done.returncode:
        raise WebExampleError(f"npm could not fetch onnxruntime-web (npm ci in {HERE}): {done.stderr.strip()}")


def server_of(site: Path, port: int) -> Server:
    """Return a server of a folder, which listens but does not answer yet.

    Args:
        site: The folder.
        port: The port; 0 takes any free one.

    Returns:
        The server.

    Raises:
        WebExampleError: If the port is taken.
    """
    try:
        return Server(("127.0.0.1", port), functools.partial(Handler, directory=str(site)))
    except (OSError, OverflowError) as error:
        raise WebExampleError(f"Port {port} cannot be used: {error}. Give another, --port 0 for any.") from error


def serve(site: Path, port: int) -> None:
    """Serve a folder on this machine alone, until interrupted.

    Args:
        site: The folder.
        port: The port; 0 takes any free one.
    """
    with server_of(site, port) as server:
        print(f"http://127.0.0.1:{server.server_port}/  (Ctrl+C ends it)", flush=True)
        server.serve_forever()


def parse() -> argparse.Namespace:
    """Return the command's arguments."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    here = (Path(os.environ.get("LIT_GELU_DATA", "data")) / "MNIST" / "raw").is_dir()
    parser.add_argument("--data", choices=["mnist", "digits"], default="mnist" if here else "digits")
    parser.add_argument("--checkpoint", type=Path, help="an MNISTClassifier trained on --data; none: train one")
    parser.add_argument("--activation", default="gelu_tanh", help="of the net that is trained (default: %(default)s)")
    parser.add_argument("--epochs", type=int, help="default: 4 on MNIST, 12 on the digits")
    parser.add_argument("--approximate", default="as_trained", help="as export_onnx takes it (default: %(default)s)")
    parser.add_argument("--lowering", default="auto", help="as export_onnx takes it (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("runs/web"), help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s; 0 takes any free one")
    return parser.parse_args()


def main() -> None:
    """Train or load, build the site, serve it."""
    arguments = parse()
    data, epochs = (MNISTData(), 4) if arguments.data == "mnist" else (DigitsData(), 12)
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.checkpoint is None:
        drawn = 2500 if arguments.data == "digits" else 1500  # 28x28 pixels take longer to render, and MNIST is large
        model = train(DrawnData(data, drawn), arguments.activation, arguments.epochs or epochs, arguments.output)
    else:
        model = MNISTClassifier.load_from_checkpoint(arguments.checkpoint, map_location="cpu", weights_only=True)
    build_site(model.eval(), data, arguments.output / "site", arguments.approximate, arguments.lowering)
    serve(arguments.output / "site", arguments.port)


if __name__ == "__main__":
    try:
        main()
    except LitGeluError as error:
        raise SystemExit(str(error)) from error
    except KeyboardInterrupt:
        pass
