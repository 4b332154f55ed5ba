"""The notebooks of ``examples/notebooks``: clean in the repository, and run from beginning to end."""

import ast
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "examples" / "notebooks"
NAMES = ("checkpoint_to_server", "first_model", "small_transformer")
SECONDS_FOR_A_CELL = 900  # only what hangs takes that long


def notebook(name):
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def source(cell):
    return "".join(cell["source"])


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_a_notebook_without_outputs(name):
    content = notebook(name)
    assert (content["nbformat"], content["metadata"]["kernelspec"]["name"]) == (4, "python3")
    assert len({cell["id"] for cell in content["cells"]}) == len(content["cells"])
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
            ast.parse(re.sub(r"^%.*$", "", source(cell), flags=re.MULTILINE))


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files(name):
    text = "".join(source(cell) for cell in notebook(name)["cells"] if cell["cell_type"] == "markdown")
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links
    assert [link for link in links if not (FOLDER / link).is_file()] == []


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own libraries, about event loops and folders
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_from_beginning_to_end(name, tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    read = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(read)
    resources = {"metadata": {"path": str(tmp_path)}}
    done = nbclient.NotebookClient(
        read, timeout=SECONDS_FOR_A_CELL, kernel_name="python3", resources=resources
    ).execute()
    shown = [output for cell in done.cells for output in cell.get("outputs", ())]
    tables = [output for output in shown if "<table" in output.get("data", {}).get("text/html", "")]
    assert len(tables) >= 4  # results show themselves
    warned = [output["text"] for output in shown if output.get("name") == "stderr"]
    assert warned == []
    assert list(tmp_path.iterdir()) == [tmp_path / "runs"]  # nothing is left beside it
