"""`Board`: an actor of Ray's on which jobs say where and how far they are. It holds plain data and loads no torch."""

PLACE, EPOCH = "place", "epoch"  # kinds of notes: a node with a process of it, and the fields of a `Progress`
Value = tuple[str, int] | tuple[float, int]


class Board:
    """Keeps the last note of each kind of every job until they are asked for."""

    def __init__(self) -> None:
        self._notes: dict[tuple[int, str], Value] = {}

    def put(self, number: int, kind: str, value: Value) -> None:
        """Keep a note of the job with this number."""
        self._notes[number, kind] = value

    def drain(self) -> list[tuple[int, str, Value]]:
        """Return the notes since the last call."""
        notes, self._notes = self._notes, {}
        return [(number, kind, value) for (number, kind), value in notes.items()]
