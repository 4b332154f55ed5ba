"""Train, export with proof, serve over HTTP, ask, and lay out for Triton: ``python examples/export_and_serve.py``.

A net learns the bundled digits, becomes an ONNX file that takes raw grey levels, is compared with PyTorch, and answers
requests through Python's own web server in several threads. Then the same file goes into a model repository of Triton
Inference Server. The requests are those of the KServe protocol, version 2, which Triton speaks too, so the same client
can ask either. Under a minute on a CPU, no network; ``--keep`` goes on serving.
"""

import argparse
import contextlib
import json
import socket
import statistics
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor

from lit_gelu.data import DigitsData
from lit_gelu.export import ModelInputError, OnnxPredictor, check_parity, export_onnx, write_proof
from lit_gelu.export.serving import write_triton_repository
from lit_gelu.tasks import MNISTClassifier

FOLDER = Path("runs/export_and_serve")
LARGEST = 1 << 20  # bytes of a request


class RequestError(ValueError):
    """A request that asks for something else than a prediction."""


class Handler(BaseHTTPRequestHandler):
    """Answers ``GET /v2/health/ready`` and ``POST /v2/models/digits/infer``, each request in a thread of its own."""

    protocol_version = "HTTP/1.1"  # connections stay open between requests
    timeout = 30  # seconds that a connection may be silent, and that a whole request may take
    server: "PredictionServer"

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

    def do_GET(self) -> None:
        """Say whether the server is ready."""
        if self.path == "/v2/health/ready":
            self.answer(HTTPStatus.OK, {"ready": True, "providers": self.server.predict.providers})
        else:
            self.answer(HTTPStatus.NOT_FOUND, {"error": f"{self.path} is not here; GET /v2/health/ready is"})

    def do_POST(self) -> None:
        """Predict."""
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > LARGEST:
            self.close_connection = True  # the rest of the request was not read
            self.answer(HTTPStatus.BAD_REQUEST, {"error": f"give Content-Length, of {LARGEST} bytes at most"})
            return
        body = self.rfile.read(int(size))
        if self.path != "/v2/models/digits/infer":
            self.answer(HTTPStatus.NOT_FOUND, {"error": f"{self.path} is not here; POST /v2/models/digits/infer is"})
            return
        try:
            outputs = self.server.predict(levels_of(body))  # the predictor may be called from many threads at once
        except (RequestError, ModelInputError) as error:  # a ModelInputError says which shape the file takes
            self.answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            return
        named = {"name": self.server.predict.output_names[0], "datatype": "FP32"}
        output = {**named, "shape": outputs.shape, "data": outputs.ravel().tolist()}
        self.answer(HTTPStatus.OK, {"model_name": "digits", "outputs": [output]})

    def answer(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        """Send JSON.

        Args:
            status: The status.
            content: Plain data.
        """
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing for each request."""


class PredictionServer(ThreadingHTTPServer):
    """A web server with a file to run, on this machine alone."""

    request_queue_size = 256  # connections that may wait for their thread; socketserver's 5 resets the sixth

    def __init__(self, predict: OnnxPredictor, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.predict = predict
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that went away; what else goes wrong keeps its stack trace."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def levels_of(body: bytes) -> np.ndarray:
    """Return the grey levels of a request.

    Args:
        body: ``{"inputs": [{"name": "images", "shape": [...], "datatype": "UINT8", "data": [...]}]}``.

    Returns:
        Levels of that shape, uint8.

    Raises:
        RequestError: If it is something else.
    """
    try:
        (entry,) = json.loads(body)["inputs"]
        values = np.array(entry["data"]).reshape(entry["shape"])
        kind = entry["name"], entry["datatype"]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise RequestError(f"this is no request for a prediction ({type(error).__name__}: {error})") from error
    if list(values.shape) != entry["shape"]:  # for numpy -1 is whatever fits
        raise RequestError(f"the data have the shape {list(values.shape)}, and {entry['shape']} was given")
    if kind != ("images", "UINT8") or values.dtype.kind != "i" or values.min() < 0 or values.max() > 255:
        raise RequestError("the input is 'images', of type UINT8: whole numbers from 0 to 255")
    return values.astype(np.uint8)


def ask(url: str, levels: Tensor) -> tuple[np.ndarray, float]:
    """Ask a server, this one or Triton.

    Args:
        url: Its address.
        levels: Grey levels, ``[rows, 1, 8, 8]``, uint8.

    Returns:
        Logits ``[rows, 10]``, and the seconds that it took.
    """
    entry = {"name": "images", "shape": list(levels.shape), "datatype": "UINT8", "data": levels.ravel().tolist()}
    body = json.dumps({"inputs": [entry]}).encode()
    start = time.perf_counter()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/v2/models/digits/infer", body, headers)  # noqa: S310 - main's address
    with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - the same
        (output,) = json.load(response)["outputs"]
    return np.array(output["data"], np.float32).reshape(output["shape"]), time.perf_counter() - start


def train(epochs: int) -> MNISTClassifier:
    """Train a net on the digits.

    Args:
        epochs: How often it sees the training set.

    Returns:
        The net.
    """
    seed_everything(0)
    model = MNISTClassifier(activation="gelu")
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    Trainer(max_epochs=epochs, devices=1, accelerator="cpu", enable_model_summary=False, **options).fit(
        model, datamodule=DigitsData()
    )
    return model.eval()


def export(model: MNISTClassifier, path: Path) -> None:
    """Write the file and its proof.

    Args:
        model: The trained net.
        path: The file.
    """
    data = DigitsData()
    labels = [str(digit) for digit in range(10)]
    print(export_onnx(model, path, preprocessing=data.preprocessing(), labels=labels))
    proof = check_parity(model, path, data)  # raises ParityError if the file computes something else
    write_proof(proof, path)
    print(proof.summary())


def try_out(url: str) -> None:
    """Ask for all test digits, one a request, from four threads, and print what came back.

    Args:
        url: The server's address.
    """
    data = DigitsData()
    data.setup("test")
    truth = np.concatenate([labels.numpy() for _, labels in data.test_dataloader()])
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda one: ask(url, one), data.raw_test_inputs().split(1)))
    guesses = np.concatenate([logits for logits, _ in answers]).argmax(1)
    times = sorted(1000 * seconds for _, seconds in answers)
    print(f"{len(guesses)} requests from 4 threads: top-1 {np.mean(guesses == truth):.2%}")
    print(f"latency: median {statistics.median(times):.1f} ms, 99 of 100 within {times[len(times) * 99 // 100]:.1f} ms")


def main() -> None:
    """Train or load, export, serve, ask, and write the repository."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", type=Path, help="an MNISTClassifier trained on the digits; none: train one")
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--port", type=int, default=0, help="default: any free one")
    parser.add_argument("--keep", action="store_true", help="go on serving until Ctrl+C")
    arguments = parser.parse_args()
    if arguments.checkpoint is None:
        model = train(arguments.epochs)
    else:
        model = MNISTClassifier.load_from_checkpoint(arguments.checkpoint, map_location="cpu", weights_only=True)
    export(model, FOLDER / "digits.onnx")
    with PredictionServer(OnnxPredictor(FOLDER / "digits.onnx"), arguments.port) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try_out(server.url)
        print(write_triton_repository(FOLDER / "digits.onnx", FOLDER / "triton", device="cpu", overwrite=True))
        if arguments.keep:
            print(f"{server.url}/v2/models/digits/infer  (Ctrl+C ends it)", flush=True)
            threading.Event().wait()
        server.shutdown()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
