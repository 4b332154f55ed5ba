"""The server of examples/export_and_serve.py: what it answers, in many threads, and what it refuses."""

import copy
import http.client
import json
import runpy
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from child_processes import PATIENCE

from lit_gelu.data import DigitsData
from lit_gelu.export import OnnxPredictor, export_onnx
from lit_gelu.tasks import MNISTClassifier

SCRIPT = Path(__file__).parents[1] / "examples" / "export_and_serve.py"
INFER = "/v2/models/digits/infer"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(SCRIPT), run_name="export_and_serve")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return MNISTClassifier(hidden_layers=1).eval()


@pytest.fixture(scope="module")
def server(example, model, tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "digits.onnx"
    export_onnx(model, path, preprocessing=DigitsData().preprocessing())
    with example["PredictionServer"](OnnxPredictor(path, ["CPUExecutionProvider"])) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def asked(server, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    return response.status, content


def request(**changes):
    tensor = {"name": "images", "shape": [2, 1, 8, 8], "datatype": "UINT8", "data": [i % 17 for i in range(128)]}
    return json.dumps({"inputs": [{**tensor, **changes}]})


def test_logits_are_those_of_the_model(example, server, model):
    levels = DigitsData().raw_test_inputs()[:5]
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(DigitsData().preprocessing()(levels).double()).numpy()
    logits, seconds = example["ask"](server.url, levels)
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()
    assert seconds > 0


def test_many_threads_at_once_get_each_their_own(example, server):
    rows = DigitsData().raw_test_inputs()[:64]
    together, _ = example["ask"](server.url, rows)
    with ThreadPoolExecutor(8) as threads:
        alone = list(threads.map(lambda row: example["ask"](server.url, row[None])[0][0], rows))
    assert np.abs(np.array(alone) - together).max() < 1e-5 * np.abs(together).max()
    assert len({row.tobytes() for row in together}) > 32


def test_nested_data_and_a_connection_that_stays_open(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=PATIENCE)
    answers = []
    for data in (np.arange(64).reshape(1, 1, 8, 8).tolist(), list(range(64))):
        connection.request("POST", INFER, request(shape=[1, 1, 8, 8], data=data))
        answers.append(json.loads(connection.getresponse().read()))
    connection.close()
    assert answers[0] == answers[1]
    (output,) = answers[0]["outputs"]
    assert (answers[0]["model_name"], output["name"], output["shape"]) == ("digits", "output", [1, 10])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "no request for a prediction (JSONDecodeError"),
        ("[" * 100000, "no request for a prediction (RecursionError"),
        ("[]", "no request for a prediction (TypeError"),
        ('{"inputs": [{"name": "images"}]}', "no request for a prediction (KeyError: 'data'"),
        (b"\xff\xfe{", "no request for a prediction (UnicodeDecodeError"),
        (request(name="self"), "the input is 'images'"),
        (request(datatype="FP32"), "of type UINT8"),
        (request(data=[256] + [0] * 127), "whole numbers from 0 to 255"),
        (request(data=[-1] + [0] * 127), "whole numbers from 0 to 255"),
        (request(data=[0.5] + [0] * 127), "whole numbers from 0 to 255"),
        (request(data=[], shape=[0, 1, 8, 8]), "whole numbers from 0 to 255"),
        (request(data=[[1, 2], [3]]), "no request for a prediction (ValueError"),
        (request(shape=[3, 1, 8, 8]), "cannot reshape array of size 128"),
        (request(shape=[-1, 1, 8, 8]), "[2, 1, 8, 8]"),
        (request(shape=[2, 64]), "(batch, 1, 8, 8)"),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong_and_the_server_goes_on(server, body, message):
    status, content = asked(server, "POST", INFER, body)
    assert status == 400
    assert message in content["error"]
    assert asked(server, "POST", INFER, request())[0] == 200


def drip(client):
    for _ in range(100):
        client.sendall(b"x")
        time.sleep(0.1)


@pytest.mark.parametrize("end", [b"", b"\r\n"])  # within the head, and within the body
def test_a_request_that_drips_in_is_given_up(example, server, monkeypatch, end):
    monkeypatch.setattr(example["Handler"], "timeout", 1)
    head = f"POST {INFER} HTTP/1.1\r\nContent-Length: 1000\r\n".encode() + end
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=PATIENCE) as client:
        client.sendall(head)
        with pytest.raises(ConnectionError):
            drip(client)


@pytest.mark.parametrize("length", ["", "abc", "-5", str(1 << 40)])
def test_lengths_that_are_missing_or_too_large(server, length):
    status, content = asked(server, "POST", INFER, b"{}", {"Content-Length": length})
    assert (status, "Content-Length" in content["error"]) == (400, True)


def test_a_crowd_waits_and_is_answered(example, server):
    """All connect before the server takes the first of them."""
    with example["PredictionServer"](server.predict) as waiting:
        clients = [socket.create_connection(("127.0.0.1", waiting.server_port), timeout=PATIENCE) for _ in range(200)]
        threading.Thread(target=waiting.serve_forever, daemon=True).start()
        for client in clients:
            client.sendall(b"GET /v2/health/ready HTTP/1.0\r\nConnection: close\r\n\r\n")
        for client in clients:
            with client, client.makefile("rb") as answer:
                assert b"200 OK" in answer.read()
        waiting.shutdown()
