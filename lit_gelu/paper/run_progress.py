"""How far a run has come, as those that make runs say it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """How many epochs of a run, or of each run of a group, have passed."""

    epoch: float
    epoch_steps: int = 0  # optimizer steps in an epoch of one run; 0 where that is not said
