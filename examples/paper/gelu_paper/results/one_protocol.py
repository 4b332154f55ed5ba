"""What the runs of an experiment have in common: a median over two protocols, or a choice among them, is of neither."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from gelu_paper.errors import OtherConfigurationError, RecordsError
from gelu_paper.protocol.cells import Cell, differences, plain
from gelu_paper.records.run_record import RunRecord

_VARIED = frozenset({"activation", "learning_rate"})  # arguments in which runs of a protocol differ, beside settings
_NOWHERE: Mapping[str, str] = MappingProxyType({})


def check_one_protocol(records: Iterable[RunRecord], places: Mapping[str, str] = _NOWHERE) -> None:
    """Refuse runs of one experiment that differ in more than arm, setting, learning rate and seed."""
    # `places` says for the message where they are, by their keys.
    given = list(records)
    varied = _VARIED.union(*(record.setting for record in given))
    first_of: dict[str, RunRecord] = {}
    for record in given:
        arms_first = first_of.setdefault(record.arm, record)
        found = list(_between(given[0], record, varied))
        if record.activation != arms_first.activation:
            found.append(f"activation: {arms_first.activation!r} and {record.activation!r}")
        if found:
            first, other = (
                f"{key!r} ({places[key]})" if key in places else repr(key) for key in (given[0].key, record.key)
            )
            raise RecordsError(
                f"{first} and {other} are runs of different protocols ({'; '.join(found)}), which have "
                "no median in common. Keep the runs of each in a folder of its own."
            )


def check_same_protocol(cells: Iterable[Cell], records: Iterable[RunRecord]) -> None:
    """Refuse to make runs beside those of another protocol in the results: no table could show both."""
    first_of = {cell.experiment: cell for cell in reversed(list(cells))}
    for record in records:
        cell = first_of.get(record.experiment)
        if cell is None:
            continue
        if record.preset != cell.preset:
            raise OtherConfigurationError(
                f"The results have runs of {cell.experiment} by --preset {record.preset} (the run {record.key!r}), and "
                f"now it is {cell.preset}. Give another folder (--results): no table can show both."
            )
        varied = _VARIED.union(cell.setting, record.setting)
        recorded, now = protocol(record.config, varied), protocol(plain(cell.config), varied)
        if recorded != now:
            found = "; ".join(differences(recorded, now, "", ("in the results", "now")))
            raise OtherConfigurationError(
                f"The results have runs of {cell.experiment} by another protocol ({found}; the run {record.key!r}). "
                "Give another folder (--results): no table can show both."
            )


def check_same_data(made: RunRecord, records: Iterable[RunRecord]) -> None:
    """Refuse a run whose data were not those of the runs of its experiment that are there."""
    other = next((record for record in records if record.experiment == made.experiment), None)
    if other is None:
        return
    found = "; ".join(differences(other.data, made.data, "data", (f"in {other.key!r}", f"in {made.key!r}")))
    if found:
        raise OtherConfigurationError(
            f"{made.key!r} was made with other data than the runs of {made.experiment} that are there ({found}). It is "
            "not recorded: no table can show both. Give --data-root as before, or another folder (--results)."
        )


def protocol(config: Mapping[str, Any], varied: Collection[str]) -> dict[str, Any]:
    """Return a run's configuration without arguments of the task that differ from run to run.

    Noise on the trained net is no part of it: of an experiment's runs some are measured under it, and some are not.
    """
    model, measurement = config.get("model", {}), config.get("measurement", {})
    arguments = {name: value for name, value in model.get("init_args", {}).items() if name not in varied}
    evaluations = {name: value for name, value in measurement.items() if name != "robustness_levels"}
    return {**config, "model": {**model, "init_args": arguments}, "measurement": evaluations}


def _between(one: RunRecord, other: RunRecord, varied: Collection[str]) -> Iterator[str]:
    """Say in what two runs differ that the runs of a protocol have in common, the data that were found too."""
    places = (f"in {one.key!r}", f"in {other.key!r}")
    yield from differences(protocol(one.config, varied), protocol(other.config, varied), "", places)
    yield from differences(one.data, other.data, "data that were found", places)
