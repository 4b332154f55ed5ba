"""`ResumableDataLoader`, which goes on in the middle of a shuffled epoch."""

from collections.abc import Iterator
from typing import Any, TypeVar

from lightning.pytorch.utilities.seed import isolate_rng
from torch import Generator
from torch.utils.data import DataLoader, IterableDataset
from typing_extensions import override

from lit_gelu.errors import ArgumentError, DataError, shown
from lit_gelu.random_states import RandomState

T_co = TypeVar("T_co", covariant=True)


class ResumableDataLoader(DataLoader[T_co]):
    """A `torch.utils.data.DataLoader` whose place in its data is in the checkpoint.

    Lightning saves the state of such a training loader, and gives it back where a run resumes within an epoch: the
    number of batches taken, and the states of the random number generators as the pass began. From these the same order
    comes again, and as many batches are thrown away, without a trace in the generators, whose states
    `lit_gelu.callbacks.ExactResume` keeps. All that a pass draws at its start, it draws when the first batch is taken:
    a resumed run makes its iterator earlier than one that was not interrupted.

    Args:
        *args: As `DataLoader` takes them.
        limit: The Trainer's ``limit_train_batches``, a number or a share of the batches. Without it, a checkpoint from
            the end of an epoch that the Trainer cut short seems to be from within it.
        **kwargs: As `DataLoader` takes them.

    Raises:
        ArgumentError: If workers shall be persistent, or nobody knows the length of an ``IterableDataset``.

    Example:
        >>> import torch
        >>> from itertools import islice
        >>> loader = ResumableDataLoader(range(6), batch_size=2, shuffle=True)
        >>> order = torch.manual_seed(0) and iter(loader)
        >>> first, state = next(order), loader.state_dict()
        >>> other = ResumableDataLoader(range(6), batch_size=2, shuffle=True)
        >>> other.load_state_dict(state)
        >>> torch.equal(torch.stack(list(other)), torch.stack(list(order)))
        True
    """

    _taken: int = 0
    _start: dict[str, Any] | None = None
    _resume: dict[str, Any] | None = None

    def __init__(self, *args: Any, limit: float = 1.0, **kwargs: Any) -> None:
        if kwargs.get("persistent_workers"):
            raise ArgumentError(
                "persistent_workers=True is not accepted: the workers' random numbers would go on from pass to pass, "
                "and no checkpoint holds them. Leave it out."
            )
        super().__init__(*args, **kwargs)
        if isinstance(self.dataset, IterableDataset) and not hasattr(self.dataset, "__len__"):  # Lightning reads ahead
            raise ArgumentError("An IterableDataset without a length is not accepted: use a plain DataLoader for it.")
        self.limit = limit

    @property
    def _own_generator(self) -> Generator | None:
        return self.generator if self.generator is not None else getattr(self.sampler, "generator", None)

    @override
    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override] # a DataLoader's own iterator draws at once
        """Yield the batches of a pass, or what is left of it."""
        resume, own = self._resume, self._own_generator
        self.start_anew()
        if resume is None:
            generator_state = {} if own is None else {"generator": own.get_state()}
            self._start, self._taken = RandomState.now().plain() | generator_state, 0
            batches = super().__iter__()
        else:
            self._start, self._taken = resume["start"], resume["taken"]
            with isolate_rng():
                RandomState.of_plain(resume["start"]).restore()
                if own is not None and "generator" in resume["start"]:
                    own.set_state(resume["start"]["generator"].cpu())
                batches = super().__iter__()
                for _ in range(self._taken):
                    next(batches, None)  # a shorter data set may have no more
        for batch in batches:
            self._taken += 1
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return where the present pass is, or the one that was loaded if no batch was taken since, as plain data."""
        if self._resume is not None:
            return self._resume
        own = self._own_generator
        return {"taken": self._taken, "start": self._start} | ({} if own is None else {"generator": own.get_state()})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on where a saved one was; one that was at its end is followed by a new one."""
        taken = state_dict.get("taken") if isinstance(state_dict, dict) else None
        if not isinstance(taken, int):
            raise DataError(
                f"The state of the training data in the checkpoint is damaged: {shown(state_dict)}. Resume from "
                "another checkpoint, or use a plain DataLoader."
            )
        length, own = len(self), self._own_generator
        end = min(length, self.limit) if isinstance(self.limit, int) else int(length * self.limit)
        if unfinished := 0 < taken < end:
            RandomState.of_plain(state_dict.get("start"))
        elif own is not None and "generator" in state_dict:
            own.set_state(state_dict["generator"].cpu())
        self._resume = state_dict if unfinished else None

    def start_anew(self) -> None:
        """Let the next pass be a new one, whatever state was loaded."""
        self._resume = None
