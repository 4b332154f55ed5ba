"""For the tests of other projects: assertions on the activations that a port, an export or a kernel computes."""

from typing import Any

from lit_gelu.activations import ActivationRegistry
from lit_gelu.audit import audit


def assert_same_activations(
    reference: Any,
    candidate: Any,
    data: Any = None,
    input_sample: Any = None,
    *,
    registry: ActivationRegistry | None = None,
) -> None:
    """Assert that two artefacts compute the same activations, whatever tolerance their outputs are compared with.

    Args:
        reference: What is right; see `lit_gelu.audit.audit`.
        candidate: What is tested.
        data: Inputs to measure the cost of a mismatch on, which the message says.
        input_sample: What modules are run with; by default ``example_input_array``.
        registry: Names activations; by default `lit_gelu.activations.registry`.

    Raises:
        AssertionError: If an activation differs, or cannot be told; the message is the report.
        AuditError: If the artefacts cannot be run or matched.

    Example:
        >>> import torch
        >>> assert_same_activations("gelu_tanh", lambda x: torch.nn.functional.gelu(x, approximate="tanh"))
    """
    report = audit(reference, candidate, data, input_sample, strict=False, registry=registry)
    if not report.passed:
        raise AssertionError(str(report))
