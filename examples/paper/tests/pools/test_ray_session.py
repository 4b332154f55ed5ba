"""What Ray is started with, and what is said if it cannot be; its own start is tested with the pool."""

import functools
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lit_gelu.extras import MissingExtraError
from gelu_paper.errors import ClusterError, PaperArgumentError
from gelu_paper.pools.ray_session import Node, RaySession, _emptied, _short_path, import_ray


def test_ray_that_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'lit-gelu\[ray\]'"):
        import_ray()


@pytest.mark.parametrize(
    ("cpus", "gpus", "slots"),
    [(1, 0, 8), (3, 0, 2), (1, 1, 2), (0.5, 0.25, 8), (1, 0.4, 4), (1, 0.6, 2), (1, 2, 1), (16, 0, 0), (1, 3, 0)],
)
def test_how_many_jobs_fit_on_a_node(cpus, gpus, slots):
    assert Node("n", "10.0.0.1", 8.0, 2.0).slots(cpus, gpus) == slots


def test_logs_of_the_call_before_are_taken_away_and_nothing_else(tmp_path):
    old = tmp_path / "ray" / "session_2026-01-01"
    old.mkdir(parents=True)
    (old / "gcs.log").touch()
    (tmp_path / "ray" / "session_latest").symlink_to(old)
    (tmp_path / "ray" / "notes").touch()
    assert [path.name for path in _emptied(tmp_path / "ray").iterdir()] == ["notes"]
    assert _emptied(tmp_path / "new").is_dir()


@pytest.mark.skipif(sys.platform == "win32", reason="sockets there have no paths")
def test_sockets_of_a_deep_folder_have_short_paths(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    deep = tmp_path / ("d" * 80)
    deep.mkdir()
    session = "session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
    with _short_path(deep) as short:
        assert len(os.fsencode(f"{short}/{session}")) <= 103
        (Path(short) / "log").touch()
        assert (deep / "log").exists()
    assert not Path(short).exists()
    assert (deep / "log").exists()
    with _short_path(Path("/tmp")) as short:
        assert short == "/tmp"


@pytest.mark.parametrize("address", ["ray://host:10001", "local", "host", ":6379", "host:", "host:1234567", "host:x"])
def test_addresses_that_are_none(address):
    with pytest.raises(PaperArgumentError, match="accepted: auto, or HOST:PORT such as"):
        RaySession(address, cpus=None, threads=1, logs=None)


def test_an_address_where_nobody_answers(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(ClusterError, match=f"The Ray cluster '{address}' cannot be joined: .*efused"):
        RaySession(address, cpus=None, threads=1, logs=None).__enter__()


def test_ray_that_is_used_already(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    with pytest.raises(ClusterError, match=r"Call ray\.shutdown\(\) first"):
        RaySession(None, cpus=None, threads=1, logs=None).__enter__()


@pytest.mark.ray
@pytest.mark.full
def test_a_cluster_that_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where "auto" looks
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Without a note there it looks for processes, and other tests' clusters may run.
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(set), raising=False)
    with (
        pytest.raises(ClusterError, match="The Ray cluster 'auto' cannot be joined"),
        RaySession("auto", cpus=None, threads=1, logs=None),
    ):
        pass
