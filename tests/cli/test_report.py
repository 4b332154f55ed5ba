"""``lit-gelu report``: a page of a folder, and exit code 2 where there is none to make."""

import json

from lit_gelu.cli.main import main

CSV = (
    "epoch,step,train_loss,curvature/loss/learning_rate,curvature/loss/top_eigenvalue,curvature/net.1/share_saturated\n"
    "0,0,2.5,,,\n0,1,1.5,0.1,19,0.95\n"
)


def test_a_folder_of_logs(tmp_path, capsys):
    folder = tmp_path / "version_0"
    folder.mkdir()
    (folder / "metrics.csv").write_text(CSV)
    (folder / "hparams.yaml").write_text("activation_swap/step_1/net.1: relu -> gelu\n")
    (folder / "report.html").write_text("RunReport's")
    assert main(["report", str(folder), "--title", "</script>", "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert (plain["title"], plain["steps"]) == ("</script>", 2)
    assert [(swap["step"], swap["changes"][0]["site"]) for swap in plain["swaps"]] == [(1, "net.1")]
    levels = {finding["topic"]: finding["level"] for finding in plain["findings"]}
    assert levels == {"saturation": "warning", "sharpness": "note"}
    page = (folder / "log_report.html").read_text()
    assert "<h1>&lt;/script&gt;</h1>" in page
    assert "net.1: 0.95" in page  # the last value of the site's curve
    assert (folder / "report.html").read_text() == "RunReport's"  # which says more


def test_a_folder_of_no_run_is_a_mistake(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.html"))


def test_names_of_files_and_columns_reach_the_terminal_as_text(tmp_path, capsys):
    folder = tmp_path / "run\x1b[2J\nwrote"
    folder.mkdir()
    (folder / "metrics.csv").write_text('step,"loss\x1b[2J\nalarm"\n0,nan\n')
    (folder / "hparams.yaml").write_text("{\x1b")
    assert main(["report", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert {line.split(":")[0].split(" ")[0] for line in lines} == {"alarm", "missing", "wrote"}
