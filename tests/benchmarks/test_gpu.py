"""``benchmarks/gpu.py``: what a record holds, budgets, mistakes in the arguments; small, all stages run on a CPU."""

import importlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from child_processes import is_running, run_command, wait_until

FOLDER = Path(__file__).parents[2] / "benchmarks"
FACTS = {"machine": {"device": "a GPU"}, "versions": {"torch": "2.11.0"}, "commit": "abc", "sources": "0123"}
BLANK = {"stage": "export", "figures": {}, "error": None, "complete": True}
STAGES = ["doctor", "tests", "parity", "export", "activations", "cifar10", "wrn"]


@pytest.fixture
def module(monkeypatch):
    """Imports a file of the benchmarks."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


@pytest.fixture
def begun(module, tmp_path):
    """Begins a record, as a stage does."""
    room = module("_gpu_record")

    def begin(seconds=100.0, facts=FACTS, resume=False):
        settings = room.Settings(
            "export", "cuda", False, seconds, time.time() + seconds, tmp_path, resume=resume, commit="abc"
        )
        return room.Record(tmp_path / "gpu-export.json", settings, facts)

    return begin


def on_disk(tmp_path):
    return json.loads((tmp_path / "gpu-export.json").read_text())


def raise_error():
    raise ValueError("no such kernel")


class TestRecord:
    def test_it_is_on_the_disk_after_every_figure(self, begun, tmp_path):
        record = begun()
        assert on_disk(tmp_path)["figures"] == {}
        assert record.figure("block", lambda: {"ms": 0.25}) == {"ms": 0.25}
        content = on_disk(tmp_path)
        assert content["figures"] == {"block": {"ms": 0.25}}
        assert content["took"]["block"] >= 0
        assert FACTS.items() <= content.items()
        assert not content["complete"]

    def test_what_fails_is_noted_and_the_next_figure_computed(self, begun, tmp_path):
        record = begun()
        assert record.figure("block", raise_error) is None
        assert record.figure("mnist", lambda: 1) == 1
        record.end()
        content = on_disk(tmp_path)
        (failure,) = content["failed"]
        assert failure["what"] == "block"
        assert failure["error"].startswith("ValueError: no such kernel\n")
        assert "test_gpu.py:" in failure["error"]
        assert content["figures"] == {"mnist": 1}
        assert content["error"] is None

    def test_without_time_nothing_is_begun_and_the_record_is_not_complete(self, begun, tmp_path):
        record = begun(seconds=-1.0)
        assert record.figure("block", raise_error) is None
        record.end()
        content = on_disk(tmp_path)
        assert content["left_out"] == [{"what": "block", "why": "no time was left: call again with --resume"}]
        assert content["failed"] == []
        assert not content["complete"]

    def test_what_needs_more_than_is_left_is_begun_only_as_the_first(self, begun):
        record = begun(seconds=100.0)
        assert record.figure("block", lambda: 1, needs=1000.0) == 1
        assert record.figure("mnist", lambda: 2, needs=1000.0) is None
        assert record.figure("wrn", lambda: 3, needs=10.0) == 3

    def test_what_is_left_out_for_other_reasons_does_not_make_it_incomplete(self, begun, tmp_path):
        record = begun()
        record.leave_out("bf16", "a bf16 file runs on a GPU only")
        record.end()
        assert on_disk(tmp_path)["complete"]

    def test_numbers_that_json_has_no_word_for_are_text(self, begun, tmp_path):
        begun().figure("error", lambda: [float("nan"), float("inf")])
        text = (tmp_path / "gpu-export.json").read_text()
        assert json.loads(text, parse_constant=lambda _: raise_error())["figures"]["error"] == ["nan", "inf"]

    def test_a_later_call_keeps_figures_and_tries_again_what_failed(self, begun, tmp_path):
        record = begun()
        record.figure("block", lambda: 1)
        record.figure("mnist", raise_error)
        record.end()
        later = begun(resume=True)
        assert later.figure("block", raise_error) == 1
        assert later.figure("mnist", lambda: 2) == 2
        later.end()
        content = on_disk(tmp_path)
        assert content["figures"] == {"block": 1, "mnist": 2}
        assert content["failed"] == []
        assert content["complete"]
        assert len(content["calls"]) == 2

    @pytest.mark.parametrize("key", ["machine", "versions", "sources"])
    def test_figures_of_other_machines_or_code_are_not_kept(self, begun, tmp_path, key):
        begun().figure("block", lambda: 1)
        begun(resume=True, facts={**FACTS, key: "another"})
        content = on_disk(tmp_path)
        assert content["figures"] == {}
        assert content["left_out"] == [{"what": "the earlier record", "why": f"{key} differ: begun anew"}]

    def test_without_resume_it_begins_anew(self, begun, tmp_path):
        begun().figure("block", lambda: 1)
        begun()
        assert on_disk(tmp_path)["figures"] == {}


class TestSupervision:
    def run(self, module, tmp_path, code, seconds=600.0):
        path = tmp_path / "record.json"
        command = [sys.executable, "-P", "-c", f"import sys\n{code}", str(path)]
        content = module("_gpu_supervision").supervised(command, path, seconds, BLANK)
        if path.is_file():
            assert json.loads(path.read_text()) == content
        return content

    @pytest.mark.full
    def test_a_stage_that_hangs_is_ended_with_what_it_started(self, module, tmp_path):
        """A child that ignores the interruption, as its own child does."""
        code = (
            "import os, signal, subprocess, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
            "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
            "open(sys.argv[1] + '.pid', 'w').write(str(child.pid))\ntime.sleep(600)"
        )
        content = self.run(module, tmp_path, code, seconds=4.0)
        assert content["error"].startswith("did not end within its 4 s")
        assert not content["complete"]
        written = tmp_path / "record.json.pid"
        if written.is_file():  # on a machine too loaded to start it within the time there is no child
            child = int(written.read_text())
            wait_until(lambda: not is_running(child), "the child's end")

    def test_one_that_dies_leaves_a_record_that_says_of_what(self, module, tmp_path):
        content = self.run(module, tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGABRT)")
        assert content["error"] == f"was ended by {signal.SIGABRT.name}"
        assert not content["complete"]

    def test_one_that_cannot_begin_too(self, module, tmp_path):
        content = self.run(module, tmp_path, "import a_module_that_is_not_there")
        assert content["error"] == "ended with code 1 before it wrote a record: its output says why"

    def test_what_it_wrote_stays(self, module, tmp_path):
        wrote = {**BLANK, "figures": {"block": 1}}
        code = f"open(sys.argv[1], 'w').write({json.dumps(wrote)!r})"
        assert self.run(module, tmp_path, code) == wrote
        died = self.run(module, tmp_path, f"{code}\nimport os; os._exit(7)")
        assert died == {**wrote, "error": "ended with code 7", "complete": False}

    def test_the_next_stage_begins_and_the_exit_code_says_that_one_failed(self, module, tmp_path, monkeypatch, capsys):
        gpu = module("gpu")
        written = {"error": None, "failed": [], "figures": {}, "left_out": [], "complete": True}
        codes = {
            "doctor": "raise SystemExit(3)",
            "tests": f"import sys; open(sys.argv[1], 'w').write({json.dumps(written)!r})",
        }

        def command(options, stage, _):
            return [sys.executable, "-c", codes[stage], str(gpu.record_path(options, stage))]

        monkeypatch.setattr(gpu, "command", command)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert gpu.main(["--stage", "doctor", "tests", "--json", str(tmp_path)]) == 1
        assert json.loads((tmp_path / "gpu-doctor.json").read_text())["error"].startswith("ended with code 3")
        assert json.loads((tmp_path / "gpu-tests.json").read_text()) == written
        assert gpu.main(["--stage", "tests", "--json", str(tmp_path)]) == 0
        assert "ERROR: ended with code 3" in capsys.readouterr().out

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    def test_without_a_gpu_the_record_says_so(self, module, tmp_path, monkeypatch):
        """In this process, as in that of a stage."""
        gpu = module("gpu")
        path = tmp_path / "gpu-export.json"
        given = ["--stage", "export", "--json", str(path), "--until", str(time.time() + 600.0), "--commit", "abc"]
        assert gpu.main(given) == 1
        content = json.loads(path.read_text())
        assert content["error"].startswith("RuntimeError: torch sees no CUDA device: the stage doctor says why")
        assert not content["complete"]
        assert content["versions"]["torch"] == torch.__version__
        assert {"machine", "commit", "sources"} <= content.keys()


class TestArguments:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--stage", "activation"], "invalid choice: 'activation'"),
            (["--seconds", "241"], "--seconds 241 was given; accepted: 1 to 240"),
            (["--seconds", "0"], "--seconds 0 was given"),
            (["--seconds", "nan"], "--seconds nan was given"),
            (["--device", "cpu"], "add --quick"),
            (["--json", "all.json"], "all.json is one file, for 9 stages: give a folder, or one --stage"),
        ],
    )
    def test_a_mistake_is_named_before_anything_runs(self, module, capsys, arguments, said):
        with pytest.raises(SystemExit) as ended:
            module("gpu").main(arguments)
        assert ended.value.code == 2
        assert said in capsys.readouterr().err

    def test_they_are_read_without_torch(self):
        code = "import sys, runpy; sys.path.insert(0, sys.argv[1]); import gpu; assert 'torch' not in sys.modules"
        run_command([sys.executable, "-P", "-c", code, str(FOLDER)])

    def test_the_stages_and_where_their_records_go(self, module):
        gpu = module("gpu")
        options = gpu.parse(["--json", "out"])
        assert options.stage == STAGES
        assert gpu.record_path(options, "wrn") == Path("out/gpu-wrn.json")
        assert gpu.record_path(gpu.parse(["--stage", "wrn", "--json", "a/b.json"]), "wrn") == Path("a/b.json")
        assert options.seconds <= 240

    def test_a_stage_gets_what_was_given(self, module):
        gpu = module("gpu")
        given = ["--stage", "wrn", "--json", "o", "--quick", "--device", "cpu", "--seconds", "9", "--keep", "k"]
        options = gpu.parse([*given, "--commit", "abc", "--resume"])
        command = gpu.command(options, "wrn", 123.5)
        assert command[:2] == [sys.executable, "-P"]
        again = gpu.parse(command[3:])
        assert {**vars(again), "json": options.json} == {**vars(options), "until": 123.5}
        assert again.json == Path("o/gpu-wrn.json")


class TestMachine:
    def test_the_same_code_has_the_same_digest_wherever_it_lies(self, module, tmp_path):
        """As a wheel lays it out, and as an editable installation does."""
        digest_of = module("_gpu_machine").digest_of
        texts = {"lit_gelu/a.py": "a = 1\n", "lit_gelu/export/b.py": "b = 2\n"}
        for name, text in texts.items():
            for target in (
                tmp_path / "wheel" / name,
                tmp_path / "checkout" / name.replace("lit_gelu/export", "export"),
            ):
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(text)
        wheel = {"lit_gelu": tmp_path / "wheel/lit_gelu", "lit_gelu/export": tmp_path / "wheel/lit_gelu/export"}
        checkout = {"lit_gelu": tmp_path / "checkout/lit_gelu", "lit_gelu/export": tmp_path / "checkout/export"}
        assert digest_of(wheel) == digest_of(checkout)
        (tmp_path / "checkout/export/b.py").write_text("b = 3\n")
        assert digest_of(wheel) != digest_of(checkout)

    def test_the_commit_that_was_given_goes_before_what_git_says(self, module, tmp_path, monkeypatch):
        machine = module("_gpu_machine")
        monkeypatch.setattr(machine, "ROOT", tmp_path)
        assert machine.checked_out("abc") == "abc"
        assert machine.checked_out("") == "unknown"

    def test_a_repository_says_its_commit_and_whether_files_differ(self, module, tmp_path, monkeypatch):
        machine = module("_gpu_machine")
        monkeypatch.setattr(machine, "ROOT", tmp_path)
        who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]

        def git(*arguments):
            return run_command(["git", *who, *arguments], cwd=tmp_path).stdout.strip()

        (tmp_path / "file").write_text("one\n")
        git("init", "-q")
        git("add", "file")
        git("commit", "-q", "-m", "One")
        assert machine.checked_out("") == git("rev-parse", "HEAD")
        assert machine.checked_out("given") == "given"
        (tmp_path / "file").write_text("two\n")
        assert machine.checked_out("") == git("rev-parse", "HEAD") + "+changes"


class TestTests:
    def test_what_pytest_says_is_read(self, module, tmp_path):
        (tmp_path / "test_sample.py").write_text(
            "import pytest\ndef test_right(): pass\ndef test_wrong(): assert 1 == 2, 'one is not two'\n"
            "@pytest.fixture\ndef broken(): raise OSError('no device')\ndef test_error(broken): pass\n"
            "@pytest.mark.skip(reason='no CUDA device')\ndef test_skipped(): pass\n"
        )
        xml = tmp_path / "junit.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={xml}",
            "test_sample.py",
        ]
        run_command(command, cwd=tmp_path, check=False)
        found = module("_gpu_tests").parsed(xml)
        assert found["counts"] == {"passed": 1, "failure": 1, "error": 1, "skipped": 1}
        assert found["skipped"] == {"no CUDA device": 1}
        messages = {failure["test"]: failure["message"] for failure in found["failures"]}
        assert "one is not two" in messages["test_sample::test_wrong"]
        assert "no device" in messages["test_sample::test_error"]
        assert len(messages) == 2

    def test_every_file_with_the_marker_is_found(self, module):
        names = {path.name for path in module("_gpu_tests").files()}
        assert {"test_export_gpu.py", "test_runtime_providers.py", "test_in_memory.py"} <= names
        assert Path(__file__).name not in names


@pytest.mark.full
def test_every_stage_runs_to_its_end_on_a_cpu(tmp_path):
    """In a folder of its own, by an interpreter that sees neither that folder nor the script's."""
    command = [sys.executable, "-P", str(FOLDER / "gpu.py"), "--device", "cpu", "--quick", "--seconds", "3600"]
    environment = {key: value for key, value in os.environ.items() if key != "LIT_GELU_DATA"} | {"OMP_NUM_THREADS": "1"}
    for stage in STAGES:  # one at a time: together they may take longer than a child process is waited for
        run_command([*command, "--stage", stage, "--json", "out", "--keep", "keep"], cwd=tmp_path, env=environment)
    records = {stage: json.loads((tmp_path / "out" / f"gpu-{stage}.json").read_text()) for stage in STAGES}
    for stage, content in records.items():
        assert (content["stage"], content["device"], content["quick"]) == (stage, "cpu", True)
        assert "nothing is to be read from its times" in content["note"]
        assert (content["error"], content["failed"], content["complete"]) == (None, [], True)
        assert content["figures"]
    assert all(figure["passed"] for figure in records["parity"]["figures"].values())
    assert [row["variant"] for row in records["export"]["figures"]["mnist, tanh, batch 4"]["rows"]] == [
        "torch eager",
        "torch channels_last",
        "onnxruntime strict",
        "onnxruntime strict, untuned",
        "onnxruntime fast",
        "onnxruntime fast, untuned",
    ]
    for stage in ("cifar10", "wrn"):
        assert "random images" in records[stage]["data"]
        assert set(records[stage]["figures"]["milliseconds a step"]["milliseconds"]) >= {
            "nothing",
            "monitor, every step",
        }
    resumed = [*command, "--stage", "cifar10", "--resume", "--json", "out", "--keep", "keep"]
    run_command(resumed, cwd=tmp_path, env=environment)
    content = json.loads((tmp_path / "out/gpu-cifar10.json").read_text())
    assert content["figures"]["epochs"]["went on from a checkpoint"]
    assert [row["epoch"] for row in content["figures"]["epochs"]["curve"]] == [0, 1]
