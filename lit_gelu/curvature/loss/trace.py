"""The trace of a symmetric matrix, by layer too, and its Frobenius norm, from products with random signs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lit_gelu.curvature.activation.statistics import accumulation_dtype
from lit_gelu.curvature.loss.linear_operator import LinearOperator, agreed_on, rademacher
from lit_gelu.curvature.loss.spectrum import Eigenpair
from lit_gelu.display import Displayed
from lit_gelu.errors import ArgumentError, UnsupportedRunError


@dataclass(frozen=True, repr=False)
class TraceEstimate(Displayed):
    """What `hutchinson_trace` estimates.

    Attributes:
        trace: The sum of the eigenvalues.
        standard_error: Its standard error over the probes, whose deviation has ``probes - 1`` degrees of freedom. A
            negative trace within two of them of zero says nothing.
        frobenius_norm: The root of the sum of the squared eigenvalues.
        by_layer: The trace of each layer's diagonal block; they add up to ``trace``. Empty without a layout.
        standard_error_by_layer: The standard error of each.
        probes: How many random vectors were used, a product each.
    """

    trace: float
    standard_error: float
    frobenius_norm: float
    by_layer: dict[str, float]
    standard_error_by_layer: dict[str, float]
    probes: int


def hutchinson_trace(
    operator: LinearOperator,
    probes: int,
    *,
    seed: int,
    event: int = 0,
    deflate: Sequence[Eigenpair] = (),
    layout: Mapping[str, Sequence[slice]] | None = None,
    accuracy: float | None = None,
    most: int | None = None,
) -> TraceEstimate:
    """Return an estimate of the trace of a symmetric matrix H, from products with random vectors.

    With probes v of independent signs, ``E v'Hv = tr H``, ``Var v'Hv = 2 (||H||_F^2 - sum_i H_ii^2)``,
    ``E ||Hv||^2 = ||H||_F^2``, and the part of ``v * Hv`` that belongs to a layer has that layer's trace as its mean.
    All are unbiased (the norm's square is).

    With orthonormal rows Q to ``deflate`` and ``P = I - Q'Q``, ``tr H = sum_i q_i'Hq_i + tr PHP``: the first part is
    computed, the second estimated from ``v = P g``, without what the eigenvectors in Q add to the variance. Pairs of a
    Lanczos iteration on the same matrix bring their ``H q_i`` along, so they cost no product.

    Source: Hutchinson 1990, "A stochastic estimator of the trace of the influence matrix for Laplacian smoothing
    splines"; the deflated form after Gambhir, Stathopoulos and Orginos 2017, "Deflation as a method of variance
    reduction for estimating the trace of a matrix inverse" (arXiv 1603.05988).

    Args:
        operator: The symmetric matrix.
        probes: How many random vectors, at least 2, or there is no standard error.
        seed: Of the run.
        event: Which measurement; seed, event and the probe's number determine a probe.
        deflate: Eigenpairs of one iteration.
        layout: The stretches of a vector that make each layer, as `module_layout` of a layout gives them.
            Together they cover all of it, once.
        accuracy: More probes are taken until the standard error is at most this share of the trace.
        most: How many probes at most; ``None`` for ``probes``.

    Raises:
        ArgumentError: If an argument is not accepted.
        UnsupportedRunError: If a product was NaN or infinite.

    Example:
        >>> from lit_gelu.curvature.loss.linear_operator import MatrixOperator
        >>> estimate = hutchinson_trace(MatrixOperator(torch.diag(torch.tensor([1.0, 2.0, -4.0]))), 2, seed=0)
        >>> estimate.trace, estimate.standard_error, round(estimate.frobenius_norm**2, 5)  # diagonal: no variance
        (-1.0, 0.0, 21.0)
    """
    if probes < 2:
        raise ArgumentError(f"probes={probes} is not accepted. Give at least 2: one has no standard error.")
    most = probes if most is None or accuracy is None else max(probes, most)
    groups = layout or {"": [slice(0, operator.size)]}
    basis = images = torch.zeros(0, operator.size, dtype=operator.dtype, device=operator.device)
    if deflate:
        basis, images = (torch.stack([getattr(one, name).to(basis) for one in deflate]) for name in ("vector", "image"))
    # What is known of the deflated rows: by layer ``q * (H q + P H q)``, and ``||H q||^2``. With E the projector on a
    # layer, tr EH = tr EQ'QH + tr EPHQ'Q + tr EPHP. The middle term cancels in the sum over the layers, not in each.
    twice = basis * (2 * images - (images @ basis.T) @ basis)
    rows, agreed = [torch.cat([_layer_sums(twice.sum(0), groups), _squared_norm(images)])], agreed_on(operator)
    while True:
        for number in range(len(rows) - 1, probes):
            signs = rademacher(operator.size, seed, event, number, dtype=operator.dtype, device=operator.device)
            v = _project(signs, basis)
            image = operator(v)
            rows.append(torch.cat([_layer_sums(v * _project(image, basis), groups), _squared_norm(image)]))
        if accuracy is None or probes >= most:
            break
        forms = torch.stack([row[:-1].sum() for row in rows])  # first what is exact, then one a probe
        trace_and_error = torch.stack([forms[0] + forms[1:].mean(), forms[1:].std() / math.sqrt(len(rows) - 1)])
        trace, error = agreed(trace_and_error).tolist()
        goal = accuracy * abs(trace)
        if error <= goal or not math.isfinite(trace):
            break
        # What the error asks for, and no more than were taken to estimate it.
        more = probes if error > math.sqrt(2) * goal else math.ceil(probes * ((error / goal) ** 2 - 1))
        probes = min(probes + more, most)
    table = torch.stack(rows).cpu().double()
    if not table.isfinite().all():
        raise UnsupportedRunError(
            "A product with the matrix was NaN or infinite, so its trace is not known. Look at the loss and at the "
            "types of the parameters: 16-bit second derivatives overflow easily."
        )
    exact, sampled = table[0], table[1:]
    values = (exact[:-1] + sampled[:, :-1].mean(0)).tolist()
    errors = (sampled[:, :-1].std(0) / math.sqrt(probes)).tolist()
    total_error = float(sampled[:, :-1].sum(1).std() / math.sqrt(probes))
    norm = float((exact[-1] + sampled[:, -1].mean()).sqrt())
    by_layer, error_by_layer = (dict(zip(layout or (), each, strict=False)) for each in (values, errors))
    return TraceEstimate(sum(values), total_error, norm, by_layer, error_by_layer, probes)


def _project(vector: Tensor, basis: Tensor) -> Tensor:
    return torch.addmv(vector, basis.T, basis @ vector, alpha=-1) if len(basis) else vector


def _layer_sums(values: Tensor, groups: Mapping[str, Sequence[slice]]) -> Tensor:
    dtype = accumulation_dtype(values.device)
    sums = [[values[part].sum(dtype=dtype) for part in parts] for parts in groups.values()]
    return torch.stack([torch.stack(parts).sum() for parts in sums])


def _squared_norm(values: Tensor) -> Tensor:
    return values.square().sum(dtype=accumulation_dtype(values.device)).reshape(1)
