"""Libraries that take CUDA's place, so that onnxruntime's CUDA provider opens files on a machine without a GPU.

Opening a file is real: the shipped provider says which kernels it has, divides the graph, optimises it and inserts its
copies. Nothing runs on a device: what must return something returns host memory, the rest returns 0. They work in a
process without torch, which would load the real libraries first.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HEADER = "#include <stdlib.h>\n#include <string.h>\n"
HANDLE = "malloc(64)"
MEMORY = "aligned_alloc(256, (n + 255) / 256 * 256 + 256)"

# What a session needs to be told; a device of compute capability 9.0 with 64 GiB. Everything else returns 0: success.
BODIES = {
    "cudaGetDeviceCount": "int cudaGetDeviceCount(int *n) { *n = 1; return 0; }",
    "cudaGetDevice": "int cudaGetDevice(int *n) { *n = 0; return 0; }",
    "cuDeviceGetCount": "int cuDeviceGetCount(int *n) { *n = 1; return 0; }",
    "cudaRuntimeGetVersion": "int cudaRuntimeGetVersion(int *n) { *n = VERSION; return 0; }",
    "cudaDriverGetVersion": "int cudaDriverGetVersion(int *n) { *n = VERSION; return 0; }",
    "cudaGetDeviceProperties": """
int cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  memset(p, 0, sizeof *p); strcpy(p->name, "stand-in"); p->major = 9; p->multiProcessorCount = 132;
  p->totalGlobalMem = 1ull << 36; p->sharedMemPerBlock = 49152; p->sharedMemPerMultiprocessor = 233472;
  p->sharedMemPerBlockOptin = 232448; p->warpSize = 32; p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048; p->maxGridSize[0] = 2147483647; p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536; return 0;
}""",
    "cudaDeviceGetAttribute": """
int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMultiProcessorCount: *value = 132; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 49152; break;
    default: *value = 1;
  }
  return 0;
}""",
    "cudaMemGetInfo": "int cudaMemGetInfo(size_t *a, size_t *b) { *a = 1ull << 35; *b = 1ull << 36; return 0; }",
    "cudaMemcpy": "int cudaMemcpy(void *d, const void *s, size_t n, int k) { memcpy(d, s, n); return 0; }",
    "cudaMemcpyAsync": (
        "int cudaMemcpyAsync(void *d, const void *s, size_t n, int k, void *t) { memcpy(d, s, n); return 0; }"
    ),
    "cudaMemset": "int cudaMemset(void *d, int v, size_t n) { memset(d, v, n); return 0; }",
    "cudaMemsetAsync": "int cudaMemsetAsync(void *d, int v, size_t n, void *s) { memset(d, v, n); return 0; }",
    "cudaPointerGetAttributes": "int cudaPointerGetAttributes(void *a, const void *p) { memset(a, 0, 32); return 0; }",
    "cudaStreamIsCapturing": "int cudaStreamIsCapturing(void *s, int *v) { *v = 0; return 0; }",
    "__cudaRegisterFatBinary": "void **__cudaRegisterFatBinary(void *p) { static void *x[8]; return x; }",
    "cublasGetMathMode": "int cublasGetMathMode(void *h, int *m) { *m = 0; return 0; }",
    **{
        name: f"int {name}(void **p, size_t n, void *x) {{ *p = {MEMORY}; return 0; }}"
        for name in ("cudaMalloc", "cudaMallocAsync", "cudaHostAlloc", "cudaMallocHost")
    },
    **{
        name: f"int {name}(void *p, void *x) {{ free(p); return 0; }}"
        for name in ("cudaFree", "cudaFreeHost", "cudaFreeAsync")
    },
    **{
        name: f"int {name}(void **p, unsigned a, int b) {{ *p = {HANDLE}; return 0; }}"
        for name in (
            "cudaStreamCreate",
            "cudaStreamCreateWithFlags",
            "cudaStreamCreateWithPriority",
            "cudaEventCreate",
            "cudaEventCreateWithFlags",
            "cublasCreate_v2",
            "cublasLtCreate",
        )
    },
    **{
        name: f'const char *{name}(int e) {{ return "stand-in"; }}'
        for name in ("cudaGetErrorString", "cudaGetErrorName", "cublasGetStatusString")
    },
}


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


def package_folder(name):
    """Where a package is, without importing it."""
    spec = importlib.util.find_spec(name)
    return None if spec is None else Path(next(iter(spec.submodule_search_locations)))


def provider_library():
    """onnxruntime's CUDA provider, of the packages that have one."""
    return package_folder("onnxruntime") / "capi" / "libonnxruntime_providers_cuda.so"


def needed_libraries(*others):
    """What the provider, and other libraries of onnxruntime, want to load of CUDA."""
    lines = [line for each in (provider_library(), *others) for line in output_of("readelf", "-d", each).splitlines()]
    names = [line.split("[")[1].rstrip("]\n") for line in lines if "NEEDED" in line]
    return [name for name in dict.fromkeys(names) if name.startswith(("libcu", "libnv"))]


def release():
    """The provider's major version of CUDA."""
    return next(int(name.rsplit(".", 1)[1]) for name in needed_libraries() if name.startswith("libcudart.so."))


def headers():
    """A folder with whole headers of that version: of NVIDIA's package, or of Triton, which has a copy."""
    nvidia, triton = package_folder("nvidia"), package_folder("triton")
    folders = [*nvidia.glob("*/include")] if nvidia else []
    folders += [triton / "backends" / "nvidia" / "include"] if triton else []
    for folder in folders:
        api = folder / "cuda_runtime_api.h"
        if (folder / "crt" / "host_defines.h").is_file() and api.is_file():
            version = re.search(r"#define CUDART_VERSION +(\d+)", api.read_text(encoding="utf-8"))
            if version and int(version[1]) // 1000 == release():
                return folder
    return None


def require_tools():
    """Skip where there is nothing to build with, and say what."""
    for tool in ("gcc", "nm", "readelf"):
        if shutil.which(tool) is None:
            pytest.skip(f"stand-in CUDA libraries are built with {tool}, which is not installed")
    if not provider_library().is_file():
        pytest.skip("this onnxruntime has no CUDA provider (onnxruntime-gpu has)")
    if headers() is None:
        pytest.skip(f"no package here has the headers of CUDA {release()} (triton has)")


def build(folder, *others):
    """Write the libraries that the provider, and other libraries of onnxruntime, want, with the functions they call."""
    symbols = {name: [] for name in needed_libraries(*others)}
    unversioned = []
    for library in (provider_library(), *others):
        for line in output_of("nm", "-D", "--undefined-only", library).splitlines():
            name, _, version = line.split()[-1].partition("@")
            if version.lstrip("@") in symbols:
                symbols[version.lstrip("@")].append(name)
            elif not version and name.startswith("cu"):
                unversioned.append(name)  # the driver's library has no versions
    for name, functions in symbols.items():
        if name.startswith("libcuda.so"):
            compiled(folder, name, [*unversioned, "cuInit", "cuDeviceGetCount"], "")
        else:
            compiled(folder, name, functions, f"{name} {{ global: *; }};\n")
    return folder


def compiled(folder, name, functions, versions):
    """Compile one library; ``versions`` is the linker's version script."""
    source, script = folder / f"{name}.c", folder / f"{name}.map"
    bodies = "\n".join(
        BODIES.get(function, f"int {function}() {{ return 0; }}") for function in dict.fromkeys(functions)
    )
    include = "#include <driver_types.h>\n" if "cudart" in name else ""
    source.write_text(f"{HEADER}{include}#define VERSION {1000 * release()}\n{bodies}\n")
    script.write_text(versions)
    flags = ["-w", "-shared", "-fPIC", f"-I{headers()}", f"-Wl,-soname,{name}"]
    flags += [f"-Wl,--version-script={script}"] if versions else []
    output_of("gcc", *flags, str(source), "-o", str(folder / name))


_REGISTRY = """
import json
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

found = [
    [kernel.domain, kernel.op_name, kernel.version_range, kernel.type_constraints]
    for kernel in get_all_opkernel_def() if kernel.provider == "CUDAExecutionProvider"
]
print(json.dumps(found))
"""


def registry(folder):
    """Every kernel of the CUDA provider: domain, operator, first and last version, types by variable."""
    # onnxruntime lists those of all its providers, and ends if one cannot be made: so TensorRT's gets libraries too.
    tensorrt = provider_library().with_name("libonnxruntime_providers_tensorrt.so")
    build(folder, tensorrt)
    called = [line.split()[-1] for line in output_of("nm", "-D", "--undefined-only", tensorrt).splitlines()]
    functions = [name for name in called if re.fullmatch(r"(create|get)[A-Z]\w+", name)]  # without a version
    for name in needed_libraries(tensorrt):
        if name.startswith(("libnvinfer", "libnvonnxparser")):
            compiled(folder, name, functions, "")
    return _answer_of(_REGISTRY, folder, None)


def environment(folder):
    return {**os.environ, "LD_LIBRARY_PATH": str(folder), "OMP_NUM_THREADS": "1"}


# As OnnxPredictor opens them, each onto an optimised file of its own; without torch, so that the provider finds the
# stand-in libraries alone.
_OPEN = """
import json, pathlib, sys

sys.modules["torch"] = None

import onnx
import onnxruntime

onnxruntime.preload_dlls = lambda: None  # the real ones
onnxruntime.set_default_logger_severity(4)
from lit_gelu.export.runtime.placement import placement_of
from lit_gelu.export.runtime.session import open_session

found = []
for number, (path, options, settings) in enumerate(json.loads(sys.argv[1])):
    sess_options = onnxruntime.SessionOptions()
    sess_options.log_severity_level = 4
    written = pathlib.Path(f"{path}.{number}.optimised")
    sess_options.optimized_model_filepath = str(written)
    for key, value in settings.items():
        sess_options.add_session_config_entry(key, value)
    entry = {}
    try:
        given = {"providers": [["CUDAExecutionProvider", options]]} if options else {}
        session = open_session(path, sess_options=sess_options, **given)
        outside = placement_of(session).outside("CUDAExecutionProvider")
        entry = {"providers": session.get_providers(), "left": sorted(node.operator for node in outside)}
    except Exception as error:
        entry["error"] = f"{type(error).__name__}: {error}"
    nodes = onnx.load(written, load_external_data=False).graph.node if written.exists() else ()
    copies = sum(node.op_type.startswith("Memcpy") for node in nodes)
    found.append({**entry, "copies": copies, "optimised": str(written)})
print(json.dumps(found))
"""


def opened(libraries, files):
    """Open files, each with options of the provider and of the session, in one process; return what became of each."""
    return _answer_of(_OPEN, libraries, [(str(path), options, settings) for path, options, settings in files])


def _answer_of(code, libraries, question):
    """What a child process without torch prints as its last line."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, json.dumps(question)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(libraries),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
