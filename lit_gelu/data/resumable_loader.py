"""`ResumableDataLoader`: a `DataLoader` that goes on in the middle of a shuffled epoch."""

from collections.abc import Iterator
from typing import Any, TypeVar

from lightning.pytorch.utilities.seed import isolate_rng
from torch.utils.data import DataLoader
from typing_extensions import override

from lit_gelu.data.errors import CorruptDataError
from lit_gelu.data.random_states import RandomStates, check_random_states, random_states, set_random_states
from lit_gelu.errors import shown

T_co = TypeVar("T_co", covariant=True)


class ResumableDataLoader(DataLoader[T_co]):
    """A `torch.utils.data.DataLoader` whose place in its data is in the checkpoint.

    Lightning saves the state of such a training loader, and gives it back where a run resumes within an epoch. The
    state is the number of batches taken, and the states of the random number generators as the pass through the data
    began: from these the same order comes again, and as many batches are taken and thrown away. Whatever was drawn for
    that leaves no trace in the generators, whose states `lit_gelu.callbacks.ExactResume` keeps.

    All that a pass draws at its start, it draws when the first batch is taken, not when the iterator is made: a resumed
    run makes its iterator earlier than one that was not interrupted. Otherwise it is a plain `DataLoader`: same
    arguments, same order of samples for a seed, and Lightning can put a distributed sampler in it.

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
    _start: RandomStates | None = None
    _resume: dict[str, Any] | None = None
    _skip: bool = False

    @override
    def __iter__(self) -> Iterator[T_co]:  # type: ignore[override] # a DataLoader's own iterator draws at once
        return self._batches()

    def state_dict(self) -> dict[str, Any]:
        """Return where the present pass is, as plain data."""
        return {"taken": self._taken, "start": self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Let the next pass go on where a saved one was; one that was at its end is followed by a new one.

        Args:
            state_dict: What `state_dict` returned.

        Raises:
            CorruptDataError: If it is anything else.
        """
        taken = state_dict.get("taken") if isinstance(state_dict, dict) else None
        if not isinstance(taken, int):
            raise CorruptDataError(
                f"The state of the training data in the checkpoint is damaged: {shown(state_dict)}. Resume from "
                "another checkpoint, or use a plain DataLoader."
            )
        unfinished = 0 < taken < len(self)
        if unfinished:
            check_random_states(state_dict.get("start"))
        self._resume = state_dict if unfinished else None

    def start_anew(self) -> None:
        """Let the next pass be a new one, whatever state was loaded."""
        self._resume, self._skip = None, False

    def skip_pass(self) -> None:
        """Let the next pass have no batches: all of them were taken before the checkpoint."""
        self._resume, self._skip = None, True

    def _batches(self) -> Iterator[T_co]:
        """Yield the batches of a pass, or what is left of it."""
        resume, skip = self._resume, self._skip
        self.start_anew()
        if skip:
            return
        if resume is None:
            self._start, self._taken = self._states(), 0
            batches = super().__iter__()
        else:
            self._start, self._taken = resume["start"], resume["taken"]
            with isolate_rng():
                self._set_states(resume["start"])
                batches = super().__iter__()
                for _ in range(self._taken):
                    next(batches)
        for batch in batches:
            self._taken += 1
            yield batch

    def _states(self) -> RandomStates:
        own = {} if self.generator is None else {"generator": self.generator.get_state()}
        return random_states() | own

    def _set_states(self, states: RandomStates) -> None:
        set_random_states(states)
        if self.generator is not None and "generator" in states:
            self.generator.set_state(states["generator"].cpu())
