"""A matrix of second derivatives over the parameters of a model, by the first method of several that works."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from lit_gelu.curvature.errors import LossCurvatureError, NonFiniteCurvatureError, NoProductError
from lit_gelu.curvature.loss.evaluation import Reduce, is_finite, weighted_mean
from lit_gelu.curvature.loss.layout import ParameterLayout
from lit_gelu.curvature.loss.products import BatchMatrix, relative_step
from lit_gelu.errors import LitGeluError

_MEMORY = torch.OutOfMemoryError
_NEEDS_SECOND_DERIVATIVES = ("reverse_over_reverse", "forward_over_reverse")


class ParameterOperator:
    """A symmetric matrix over the parameters of a model: the mean over batches and ranks of one a batch.

    Attributes:
        parameters: Where each parameter lies in a vector.
        method: How products are computed; final after the first one, which is the trial.
        loss: The loss over all samples, no dimensions.
        gradient: Its gradient, shape ``[size]``.
        products: How many products were computed.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[str], BatchMatrix]],
        layout: ParameterLayout,
        counts: Sequence[int],
        *,
        methods: Sequence[str],
        reduce: Reduce | None,
    ) -> None:
        self.parameters = layout
        self.method = ""
        self.products = 0
        self._counts = list(counts)
        self._reduce = reduce
        self._makers = list(makers)
        self._untried = list(methods)
        self._failures: list[str] = []
        self._proven = False
        self._closed = False
        self._batches: list[BatchMatrix] = []
        self._take_next_method()
        first_order = self._mean([batch.first_order() for batch in self._batches])
        self.loss, self.gradient = first_order[-1].clone(), first_order[:-1]
        if not is_finite(first_order):
            raise NonFiniteCurvatureError(_describe_non_finite(self.loss, self.gradient, layout))

    @property
    def size(self) -> int:
        """How many parameters are trained."""
        return self.parameters.size

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors."""
        return self.parameters.dtype

    @property
    def device(self) -> torch.device:
        """Of the vectors."""
        return self.parameters.device

    @property
    def layout(self) -> dict[str, slice]:
        """The stretch of a vector that belongs to each parameter."""
        return dict(self.parameters.slices)

    @property
    def reason(self) -> str:
        """Why the method is the one it is, in words; final after the first product."""
        notes = [batch.note for batch in self._batches[:1] if batch.note]
        return "; ".join([*self._failures, *notes]) or "the method tried first works"

    def __call__(self, vector: Tensor) -> Tensor:
        """Return the product with a vector; until one was finite, a method that fails makes way for the next."""
        if self._closed:
            raise LossCurvatureError("The operator was closed, and its graph is gone. Make a new one.")
        vector = self.parameters.check(vector, "The vector")
        self.products += 1
        while True:
            try:
                product = self._mean([batch.product(vector) for batch in self._batches])
                self._check_trial(product, vector)
            except (RuntimeError, NonFiniteCurvatureError) as error:
                if self._proven:
                    raise
                self._give_up(error)
                self._take_next_method()
            else:
                self._proven = True
                return product

    def agreed(self, numbers: Tensor) -> Tensor:
        """Return the mean of numbers over ranks, the very same on all: what a common decision must rest on."""
        return numbers if self._reduce is None else weighted_mean([numbers], [1], self._reduce)

    def close(self) -> None:
        """Release the graphs that products are computed from."""
        self._closed = True
        self._batches = []
        self._makers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _check_trial(self, product: Tensor, vector: Tensor) -> None:
        """Look at the first product only: the host shall not wait for later ones, whose sums show it anyway."""
        if self._proven:
            return
        if not is_finite(product):
            raise NonFiniteCurvatureError(_describe_product(self.method, vector))
        if self._untried and any(batch.doubtful for batch in self._batches):
            self._compare(product, vector)

    def _compare(self, product: Tensor, vector: Tensor) -> None:
        """Compare the first product with finite differences, which need no second derivative."""
        reference = self._mean([make("finite_differences").product(vector) for make in self._makers])
        error = float((product - reference).norm() / reference.norm())
        if error > max(0.05, 2 * relative_step(self.parameters)):
            raise RuntimeError(
                f"the product is {error:.0%} off from finite differences: a custom function's pass back hides its own "
                "derivative"
            )

    def _take_next_method(self) -> None:
        """Prepare the batches for the next method that can be prepared."""
        while True:
            self.method = self._untried.pop(0)
            try:
                self._batches = [make(self.method) for make in self._makers]
            except RuntimeError as error:
                self._give_up(error)
            else:
                return

    def _give_up(self, error: Exception) -> None:
        """Record why a method failed, or raise the error if no other is left or it is of memory."""
        self._batches = []
        last = not self._untried
        if last and self.method in _NEEDS_SECOND_DERIVATIVES and not isinstance(error, (LitGeluError, _MEMORY)):
            raise NoProductError(
                f"No product can be computed by method={self.method!r}: {_first_line(error).rstrip('.')}. Give "
                "method='auto', which takes the first exact way that works, or 'finite_differences', which needs first "
                "derivatives only."
            ) from error
        if last or isinstance(error, _MEMORY):
            raise error
        self._failures.append(f"{self.method} failed: {_first_line(error)}")

    def _mean(self, rows: Sequence[Tensor]) -> Tensor:
        """Average one vector a batch over batches and ranks."""
        return weighted_mean(rows, self._counts, self._reduce)


def methods_to_try(
    method: str, module: nn.Module | None, known: Sequence[str], by_module: str, only_by_name: Sequence[str] = ()
) -> list[str]:
    """Return the methods to try, in order; ``by_module`` is the one that needs the module."""
    if method == "auto":
        return [each for each in known if module is not None or each != by_module]
    if method not in {*known, *only_by_name}:
        accepted = ", ".join([*known, *only_by_name])
        raise LossCurvatureError(f"method={method!r} is not accepted. Give one of {accepted}, or auto.")
    if method == by_module and module is None:
        raise LossCurvatureError(
            f"method={method!r} replaces the parameters by dual tensors, and module=None does not tell where. Give "
            "module=, the module that the closure calls."
        )
    return [method]


def _first_line(error: Exception) -> str:
    """Return the first line of what an error says."""
    return str(error).strip().partition("\n")[0]


def _describe_non_finite(loss: Tensor, gradient: Tensor, layout: ParameterLayout) -> str:
    """Say what is not finite, and where."""
    if not loss.isfinite():
        return (
            f"The loss is {loss.item()}, so it has no curvature. Look at the step before: the parameters or the batch "
            "hold values that are not finite, or the learning rate is too large."
        )
    names = [name for name, part in layout.slices.items() if not gradient[part].isfinite().all()]
    return (
        f"The loss is {loss.item():.6g}, but its gradient is not finite for {', '.join(names)}. A square root or "
        "logarithm at 0, or 16-bit overflow, does that."
    )


def _describe_product(method: str, vector: Tensor) -> str:
    """Say why a product is not finite."""
    if not vector.isfinite().all():
        return "The vector holds values that are not finite. Give a finite vector."
    return (
        f"The product by {method} is not finite, though loss and gradient are. An activation's second derivative "
        "overflows, as in 16-bit types; method='finite_differences' needs first derivatives only."
    )
