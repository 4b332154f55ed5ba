"""What the package's layout promises: a light import, and no bare top-level names."""

from child_processes import run_python

HEAVY = (
    "lightning",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "matplotlib",
    "torchvision",
    "sklearn",
    "rich",
    "jsonargparse",
)


def _run(code: str) -> str:
    return run_python(code).stdout.strip()


def test_import_is_light():
    loaded = _run(f"import sys, lit_gelu; print(*[name for name in {HEAVY} if name in sys.modules])")
    assert loaded == ""


def test_parts_are_imported_when_first_used():
    assert _run("import lit_gelu; print(lit_gelu.tasks.__name__, 'tasks' in dir(lit_gelu))") == "lit_gelu.tasks True"


def test_nothing_is_importable_under_a_bare_name():
    code = "from importlib.util import find_spec; print(find_spec('callbacks'), find_spec('export'))"
    assert _run(code) == "None None"


def test_an_unknown_attribute_says_so():
    assert "no attribute 'no_such_part'" in _run(
        "import lit_gelu\ntry:\n    lit_gelu.no_such_part\nexcept AttributeError as error:\n    print(error)"
    )
