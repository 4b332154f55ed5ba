"""What must be said of runs wherever their numbers are shown: that protocol, data or arithmetic are not the paper's."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from lit_gelu.paper.records import RunRecord

QUICK = "quick: not the paper's protocol"
# How `TIMITData` describes the full corpus with its standard core test; everything else is another set.
_FULL_TIMIT = "TIMIT, full corpus, standard core test"
_FLOAT32 = ("32-true", "32", 32)


def labels_of(records: Iterable[RunRecord]) -> list[str]:
    """Return what to say of some runs.

    Args:
        records: The runs.

    Returns:
        `QUICK` first if any of them is not of the full preset, then a text for each way in which data or arithmetic are
        not the paper's; none of them twice, and none at all if everything is as in the paper.
    """
    given = list(records)
    quick = [QUICK] if any(record.preset != "full" for record in given) else []
    return list(dict.fromkeys([*quick, *(text for record in given for text in _labels(record))]))


def _labels(record: RunRecord) -> Iterator[str]:
    """Yield what a run's configuration says, and what its data module said that it found."""
    data: Mapping[str, Any] = record.config.get("data", {})
    name = str(data.get("class_path", "")).rpartition(".")[2]
    arguments = data.get("init_args", {})
    if name == "TweetData" and arguments.get("clusters"):
        yield "substitute data: bit paths of word clusters, not the paper's word vectors"
    corpus = str(record.data.get("corpus", _FULL_TIMIT))
    if name == "TIMITData" and not corpus.startswith(_FULL_TIMIT):
        found = "NLTK's sample of TIMIT, not the corpus" if "sample" in corpus else corpus.partition(":")[0]
        yield f"substitute data: {found}"
    if name == "DigitsData":
        yield "substitute data: scikit-learn's digits, not MNIST"
    for argument, part in (("train_samples", "training"), ("test_samples", "test")):
        if arguments.get(argument) is not None:
            yield f"only the first {arguments[argument]} {part} samples"
    precision = record.config.get("trainer", {}).get("precision", _FLOAT32[0])
    if precision not in _FLOAT32:
        yield f"precision {precision}, not 32 bit"
