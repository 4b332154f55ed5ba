"""The test errors that the GELU paper's authors printed, and where each stands.

They are kept as they were printed, so that a table shows 29.3 and not 29.30. What they did not print, such as MNIST's
error rates, is not here; nothing of our own stands in for it. Points of their curves are in `published_curves`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

PAPER = "arXiv 1606.08415"
SUBMISSION = "ICLR 2017 submission (November 2016)"


@dataclass(frozen=True)
class PublishedNumber:
    """A test error that was printed.

    Args:
        experiment: The experiment's name.
        arm: The arm's name.
        printed: The error in per cent, as it was printed.
        source: Where.
        setting: The settings that it belongs to; a run must agree in those that are named here.
        tuned: Whether the settings were chosen on the validation set together with the learning rate, so that the
            number belongs to no setting in particular.
    """

    experiment: str
    arm: str
    printed: str
    source: str
    setting: Mapping[str, float] = field(default_factory=dict)
    tuned: bool = False

    @property
    def value(self) -> float:
        """The error as a share, 0 to 1.

        Example:
            >>> PublishedNumber("tweets", "gelu", "12.57", "the paper").value
            0.1257
        """
        return float(f"{self.printed}e-2")


def _printed(experiment: str, source: str, tuned: bool = False, **errors: str) -> list[PublishedNumber]:
    """Return one printed error for each arm."""
    return [PublishedNumber(experiment, arm, printed, source, tuned=tuned) for arm, printed in errors.items()]


_ZERO_IDENTITY = f"{SUBMISSION}, section 4"
NUMBERS: tuple[PublishedNumber, ...] = (
    *_printed("tweets", f"{PAPER}, section 3.3", gelu="12.57", relu="12.67", elu="12.91"),
    *_printed("timit", f"{PAPER}, section 3.4", gelu="29.3", relu="29.5", elu="29.6"),
    *_printed("cifar10", f"{PAPER}, section 3.5", gelu="7.89", relu="8.16", elu="8.41"),
    *_printed("cifar100", f"{PAPER}, section 3.5", gelu="20.74", relu="21.77", elu="22.98"),
    # The stochastic 0-I map as the only nonlinearity, against ReLU whose dropout was tuned over keep 1, .75 and .5.
    *_printed("mnist_zero_identity", _ZERO_IDENTITY, tuned=True, zero_identity="2.00", relu="2.10"),
    *_printed("tweets_zero_identity", _ZERO_IDENTITY, tuned=True, zero_identity="12.5", relu="11.9"),
    *_printed("timit_zero_identity", _ZERO_IDENTITY, tuned=True, zero_identity="29.46", relu="29.46"),
)

# The paper also names the wide residual network's own error. It is no arm: that net was trained for 200 epochs with
# another block, schedule and augmentation, so it is named below the table and belongs in no difference.
NUMBERS_BESIDE: tuple[PublishedNumber, ...] = (
    PublishedNumber(
        "cifar100",
        "relu",
        "22.89",
        f"{PAPER}, section 3.5, quotes the wide residual network's own recipe (Zagoruyko and Komodakis 2016)",
    ),
)


def published_number(
    experiment: str, arm: str, setting: Mapping[str, float], tuned: bool = False
) -> PublishedNumber | None:
    """Return the test error that was printed for an arm.

    Args:
        experiment: The experiment's name.
        arm: The arm's name.
        setting: The run's settings.
        tuned: Whether the run's settings were chosen on the validation set, as the learning rate is.

    Returns:
        The number; ``None`` if none was printed.

    Example:
        >>> published_number("timit", "gelu", {}).printed
        '29.3'
        >>> published_number("mnist", "gelu", {"keep": 0.5}) is None
        True
    """
    for number in NUMBERS:
        if (number.experiment, number.arm, number.tuned) == (experiment, arm, tuned) and agrees(
            number.setting, setting
        ):
            return number
    return None


def agrees(published: Mapping[str, float], setting: Mapping[str, float]) -> bool:
    """Return whether a run has the settings that a published number or curve names.

    Args:
        published: The settings that are named.
        setting: The run's.

    Returns:
        Whether they are equal; the run may have more.
    """
    return all(setting.get(name) == value for name, value in published.items())
