"""Whatever opens a file, imports by name or runs text is listed here, with the test that hands it hostile content."""

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("lit_gelu", "callbacks", "export")
SOURCES = {
    path.relative_to(ROOT).as_posix(): ast.parse(path.read_text())
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}

# From a function that reads, by the end of its name, to who calls it and which test gives that hostile content.
READERS = {
    "torch.load": {"callbacks/checkpoint_file.py": "hostile/test_checkpoints.py"},
    "load_from_anywhere": {"callbacks/checkpoint_file.py": "hostile/test_checkpoints.py"},
    "onnx.load": {
        "export/parity/activation_census.py": "what onnxruntime wrote just now",
        "export/parity/check.py": "hostile/test_other_files.py",
        "export/parity/subgraph.py": "hostile/test_other_files.py",
        "export/proof.py": "export/test_proof.py",
        "export/quantization/cost.py": "export/quantization/test_cost.py",
        "export/quantization/graph.py": "export/quantization/test_quantize.py",
        "export/quantization/quantize.py": "export/quantization/test_quantize.py",
        "export/quantization/int8_metadata.py": "hostile/test_other_files.py",
        "export/metadata.py": "export/test_bad_files.py",
        "export/serving/repository.py": "hostile/test_other_files.py",
    },
    "ir.load": {"export/inspection.py": "hostile/test_other_files.py"},
    "np.load": {},
    "json.load": {},
    "json.loads": {
        "lit_gelu/files.py": "hostile/test_other_files.py",
        "lit_gelu/cli/bench.py": "what it wrote itself, in memory",
    },
    "load_checkpoint": {"callbacks/loading.py": "hostile/test_checkpoints.py"},
    "safe_load": {
        "callbacks/checkpoint_file.py": "hostile/test_checkpoints.py",
        "lit_gelu/report/log_folder.py": "report/test_log_folder.py",
    },
    "EventAccumulator": {"lit_gelu/report/logged_values.py": "fuzz/test_run_folders.py"},
    "csv.DictReader": {
        "lit_gelu/cli/demo_plots.py": "what the demo wrote just now",
        "lit_gelu/report/logged_values.py": "fuzz/test_run_folders.py",
    },
    "ParseFromString": {"export/runtime/onnx_proto.py": "export/test_bad_files.py"},
    "parsed_model": {"export/runtime/model_file.py": "export/test_bad_files.py"},
    "parsed_file": {
        "export/proof.py": "export/test_proof.py",
        "export/runtime/model_file.py": "export/test_bad_files.py",
        "export/runtime/placement.py": "export/test_bad_files.py",
    },
    "parse_json": {
        "export/metadata.py": "hostile/test_other_files.py",
        "export/runtime/model_file.py": "fuzz/test_other_files.py",
        "export/quantization/int8_metadata.py": "hostile/test_other_files.py",
        "lit_gelu/choose/run_files.py": "choose/test_run_files.py",
        "export/runtime/tuning_file.py": "hostile/test_other_files.py",
        "lit_gelu/report/plain_data.py": "fuzz/test_run_folders.py",
    },
    "literal_eval": {
        "export/lowering/spellings.py": "what torch's exporter wrote just now",
        "export/lowering/recipe.py": "a table of this package, and register(onnx=) of code",
    },
}
# Who imports by a name that is no constant, or runs text; no reader of files.
IMPORTERS = {
    "lit_gelu/__init__.py": "its own parts, when they are asked for",
    "export/__init__.py": "its own parts, when they are asked for",
    "export/torch_translations.py": "modules of torch and onnxscript, named in code",
    "lit_gelu/activations/naming/importing.py": "specs of code, of the command line and of YAML",
    "lit_gelu/activations/integrations/installation.py": "the library that install() names",
    "lit_gelu/deprecation.py": "what an old name of this package is called now",
    "lit_gelu/cli/loading.py": "classes that the command line names",
    "lit_gelu/cli/completion.py": "its own sub-commands",
    "lit_gelu/cli/main.py": "its own sub-commands",
    "lit_gelu/cli/own_modules.py": "modules that --import names",
    "lit_gelu/extras.py": "libraries of extras, named in code",
    "lit_gelu/surgery/source.py": "the source of a module's own forward, for a swap of a call",
}
IMPORTS = {"importlib.import_module", "import_module", "__import__", "eval", "exec", "compile"}
UNSAFE = {"pickle.load", "pickle.loads", "joblib.load", "dill.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}


@functools.cache
def calls(tree):
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [(ast.unparse(node.func), node) for node in found if isinstance(node.func, ast.Name | ast.Attribute)]


def imports_of(tree):
    """Return what a module imports, names within modules included."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("function", READERS)
def test_who_reads_is_listed_with_its_test(function):
    found = {file for file, tree in SOURCES.items() for name, _ in calls(tree) if f".{name}".endswith(f".{function}")}
    unlisted = found - READERS[function].keys()
    assert not unlisted, f"{unlisted} call {function}: give them hostile content in tests/hostile, and list them here"
    for file in (text for text in READERS[function].values() if text.endswith(".py")):
        assert (ROOT / "tests" / file).is_file(), file


def test_who_imports_by_name_is_listed():
    found = set()
    for file, tree in SOURCES.items():
        for name, node in calls(tree):
            constant = bool(node.args) and isinstance(node.args[0], ast.Constant)
            if name in IMPORTS and not constant:
                found.add(file)
    assert found <= IMPORTERS.keys(), f"{found - IMPORTERS.keys()} import by name: readers of files may not"


def test_torch_reads_plain_data_only():
    for file, tree in SOURCES.items():
        for name, node in calls(tree):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            if name in {"torch.load", "load_from_anywhere"} or name.endswith(".load_checkpoint"):
                assert ast.unparse(given["weights_only"]) == "True", f"{file}:{node.lineno}"
            if name in {"np.load", "numpy.load"}:
                assert ast.unparse(given["allow_pickle"]) == "False", f"{file}:{node.lineno}"
            assert name not in UNSAFE, f"{file}:{node.lineno}"


def test_no_reader_of_files_reaches_what_imports():
    """What imports dotted paths is asked by the registry for specs of code, and by selectors of code, alone."""
    importing = "lit_gelu.activations.naming.importing"
    askers = {file for file, tree in SOURCES.items() if importing in imports_of(tree)}
    assert askers == {"lit_gelu/activations/registry.py", "lit_gelu/surgery/selectors.py"}
    for file in ("entry", "forms", "names", "spec", "stored"):
        assert not imports_of(SOURCES[f"lit_gelu/activations/naming/{file}.py"]) & {importing, "importlib"}
