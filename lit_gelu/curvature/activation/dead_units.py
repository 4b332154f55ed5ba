"""Dead units: channels of an activation that passed nothing on for a while."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lit_gelu.errors import ArgumentError


class DeadUnitWindow:
    """Remembers, of every channel of every site, at which event it was last alive.

    A channel is alive at an event if |f'| >= 0.01 at any element that was looked at, and dead if it was not for
    ``window`` events. A channel that is open at a share p of its elements is taken for dead with the probability
    ``(1 - p)^n``, n the elements that were looked at: rows a event and rank, times ranks, times ``window``.

    Args:
        window: How many events.
        channels: Channels of every site, 0 for one without.
        device: Where the masks are.

    Raises:
        ArgumentError: If ``window`` is not positive.

    Example:
        >>> window = DeadUnitWindow(2, [3])
        >>> for mask in ([True, False, True], [False, False, True]):
        ...     window.update(torch.tensor(mask))
        >>> window.counts().tolist(), window.is_full
        ([1.0], True)
    """

    def __init__(self, window: int, channels: Sequence[int], device: torch.device | str = "cpu") -> None:
        if window < 1:
            raise ArgumentError(f"{window=} is not accepted. Give a positive number of events.")
        self.window = window
        self.channels = list(channels)
        self.events = 0
        self._last_alive = torch.zeros(sum(self.channels), dtype=torch.int64, device=device)
        sizes = torch.tensor(self.channels, dtype=torch.int64)
        self._sizes = sizes
        self._site = torch.repeat_interleave(torch.arange(len(self.channels)), sizes).to(device)
        self._since = [0] * len(self.channels)  # the events before a site was first seen

    @property
    def is_full(self) -> bool:
        """Whether as many events were seen as the window has."""
        return self.events >= self.window

    def join(self, masks: Mapping[int, Tensor]) -> Tensor:
        """Put the masks of an event one behind the other; sites without one count as alive.

        Args:
            masks: By site, over its channels; one of another length is not used.

        Returns:
            One mask, to be given to `update`; those of several ranks are to be combined by ``or`` before.
        """
        device = self._last_alive.device
        parts = []
        for number, count in enumerate(self.channels):
            mask = masks.get(number)
            if mask is None or mask.shape != (count,):
                mask = torch.ones(count, dtype=torch.bool, device=device)
            parts.append(mask if mask.device == device else mask.to(device))
        return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.bool, device=device)

    def update(self, alive: Tensor) -> None:
        """Take note of an event, by what `join` returned."""
        self.events += 1
        self._last_alive.masked_fill_(alive.to(self._last_alive.device), self.events)

    def grown(self, channels: Sequence[int]) -> "DeadUnitWindow":
        """Return the window with channels of sites that had none; theirs begins here.

        Args:
            channels: As in the constructor; the same where a site had channels before.
        """
        grown = DeadUnitWindow(self.window, channels, self._last_alive.device)
        grown.events = self.events
        grown._since = [
            since if before else self.events for since, before in zip(self._since, self.channels, strict=True)
        ]
        existing = torch.tensor(self.channels, device=grown._site.device)[grown._site] > 0
        grown._last_alive.fill_(self.events)[existing] = self._last_alive
        return grown

    def counts(self) -> Tensor:
        """Count each site's dead channels, on the masks' device; to be used if `is_full`."""
        dtype = torch.float32 if self._last_alive.device.type == "mps" else torch.float64
        dead = (self._last_alive <= self.events - self.window).to(dtype)
        return torch.zeros(len(self.channels), dtype=dtype, device=dead.device).index_add_(0, self._site, dead)

    def shares(self) -> Tensor:
        """Return the share of each site's channels that is dead; NaN of a site without channels, or a full window."""
        counts = self.counts()
        if self._sizes.device != counts.device:
            self._sizes = self._sizes.to(counts.device, non_blocking=True)
        shares = counts / self._sizes
        late = [number for number, since in enumerate(self._since) if since and self.events - since < self.window]
        if late:
            shares[late] = torch.nan
        return shares

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs."""
        return {
            "events": self.events,
            "channels": list(self.channels),
            "last_alive": self._last_alive.cpu().clone(),
            "since": list(self._since),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned; `ArgumentError` if that is of other channels."""
        if list(state_dict["channels"]) != self.channels:
            raise ArgumentError(
                f"The state is of {state_dict['channels']} channels by site, here there are {self.channels}."
            )
        self.events = state_dict["events"]
        self._last_alive.copy_(state_dict["last_alive"])
        if "since" in state_dict:  # not in files of earlier code
            self._since = [int(since) for since in state_dict["since"]]
