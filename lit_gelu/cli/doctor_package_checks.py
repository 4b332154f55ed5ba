"""What can be wrong with the packages: requirements, torch, onnxruntime."""

import re

from lit_gelu.cli.doctor_report import Facts, Finding


def check_requirements(facts: Facts) -> Finding:
    """Are lit-gelu's own requirements met?

    Args:
        facts: What was gathered.

    Returns:
        The finding.

    Example:
        >>> check_requirements(Facts(unmet=("onnx>=1.20 (1.16.0 is installed)",))).level
        'broken'
    """
    if not facts.unmet:
        return Finding("ok", "requirements", "every distribution that lit-gelu needs is there, in a version that fits")
    names = " ".join(f"'{re.split(r'[ (]', text)[0]}'" for text in facts.unmet)
    return Finding("broken", "requirements", f"not met: {'; '.join(facts.unmet)}", f"pip install {names}")


def check_torch(facts: Facts) -> Finding:
    """Can torch be imported?

    Args:
        facts: What was gathered.

    Returns:
        The finding.
    """
    if facts.torch_error:
        remedy = "pip uninstall -y torch && pip install torch"
        return Finding("broken", "torch", f"cannot be imported: {facts.torch_error}", remedy)
    built = f"for CUDA {facts.torch_cuda}" if facts.torch_cuda else "without CUDA"
    return Finding("ok", "torch", f"{facts.versions.get('torch', '?')}, built {built}")


def check_onnxruntime_wheels(facts: Facts) -> Finding:
    """Is exactly one distribution behind the import name ``onnxruntime``?

    Two overwrite each other's files, the last one wins, and removing one leaves an empty package.

    Args:
        facts: What was gathered.

    Returns:
        The finding.

    Example:
        >>> both = ("onnxruntime", "onnxruntime-gpu")
        >>> facts = Facts(platform="Linux x86_64", onnxruntime_distributions=both)
        >>> print(check_onnxruntime_wheels(facts).remedy)
        pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu
    """
    names = facts.onnxruntime_distributions
    if len(names) == 1:
        version = facts.versions.get(names[0], "?")
        return Finding("ok", "onnxruntime wheels", f"one: {names[0]} {version}")
    wanted = "onnxruntime-gpu" if _has_gpu_wheels(facts) else "onnxruntime"
    if not names:
        return Finding("broken", "onnxruntime wheels", "none is installed", f"pip install {wanted}")
    text = f"{' and '.join(names)} are installed together; they have the same files, and the last one installed wins"
    return Finding("broken", "onnxruntime wheels", text, f"pip uninstall -y {' '.join(names)} && pip install {wanted}")


def check_onnxruntime(facts: Facts) -> Finding:
    """Can onnxruntime be imported, and does it run a model on the CPU?

    Args:
        facts: What was gathered.

    Returns:
        The finding.
    """
    if not facts.onnxruntime_error:
        built = f"for CUDA {facts.onnxruntime_cuda}" if facts.onnxruntime_cuda else "without CUDA"
        return Finding("ok", "onnxruntime", f"runs a model on the CPU; built {built}")
    names = facts.onnxruntime_distributions or ("onnxruntime",)
    remedy = f"pip install --force-reinstall --no-deps {names[-1]}"
    if len(names) > 1:
        remedy = check_onnxruntime_wheels(facts).remedy
    return Finding("broken", "onnxruntime", f"does not work: {facts.onnxruntime_error}", remedy)


def _has_gpu_wheels(facts: Facts) -> bool:
    """Return whether onnxruntime-gpu has wheels for this platform."""
    words = facts.platform.lower()
    return ("linux" in words or "windows" in words) and ("x86_64" in words or "amd64" in words)
