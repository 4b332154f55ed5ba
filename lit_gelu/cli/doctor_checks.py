"""What can be wrong with an installation: pure functions from facts to findings."""

from collections.abc import Callable

from lit_gelu.cli.doctor_cuda_checks import (
    check_cuda_run,
    check_cuda_versions,
    check_driver,
    check_gpu,
    check_kernels,
    check_libraries,
)
from lit_gelu.cli.doctor_package_checks import (
    check_onnxruntime,
    check_onnxruntime_wheels,
    check_requirements,
    check_torch,
)
from lit_gelu.cli.doctor_report import Facts, Finding

CHECKS: tuple[Callable[[Facts], Finding], ...] = (
    check_requirements,
    check_torch,
    check_onnxruntime_wheels,
    check_onnxruntime,
    check_gpu,
    check_driver,
    check_cuda_versions,
    check_libraries,
    check_kernels,
    check_cuda_run,
)


def examine(facts: Facts) -> list[Finding]:
    """Run every check.

    Args:
        facts: What was gathered.

    Returns:
        One finding a check.
    """
    return [check(facts) for check in CHECKS]
