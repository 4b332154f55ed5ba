"""What has to be said beside the numbers of runs whose protocol, data or arithmetic are not the paper's."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gelu_paper.protocol.experiments import EXPERIMENTS
from gelu_paper.records.run_record import RunRecord

QUICK = "quick: not the paper's protocol"
# How `TIMITData` describes the full corpus with its standard core test; everything else is another set.
_FULL_TIMIT = "TIMIT, full corpus, standard core test"
_FLOAT32 = ("32-true", "32", 32)


def labels_of(records: Iterable[RunRecord]) -> list[str]:
    """Say wherever numbers of runs are shown that protocol, data or arithmetic are not the paper's; `QUICK` first."""
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
    corpus = str(record.data.get("corpus", "a corpus that the record does not name"))
    if name == "TIMITData" and not corpus.startswith(_FULL_TIMIT):
        found = "NLTK's sample of TIMIT, not the corpus" if "sample" in corpus else corpus.partition(":")[0]
        yield f"substitute data: {found}"
    if name.startswith("CIFAR") and record.data.get("arrays") is not None:
        yield f"images from {record.data['arrays']}, which need not be the whole of CIFAR"
    if name == "DigitsData":
        yield "substitute data: scikit-learn's digits, not MNIST"
    for argument, part in (("train_samples", "training"), ("test_samples", "test")):
        if arguments.get(argument) is not None:
            yield f"only the first {arguments[argument]} {part} samples"
    yield from _shorter(record)
    precision = record.config.get("trainer", {}).get("precision", _FLOAT32[0])
    if precision not in _FLOAT32:
        yield f"precision {precision}, not 32 bit"
    if record.config.get("model", {}).get("init_args", {}).get("noise") == "keys":
        yield "random numbers by key (--noise keys)"
    elif arguments.get("order") == "seed":
        yield "order of samples by seed (--noise keys)"


def _shorter(record: RunRecord) -> Iterator[str]:
    """Yield what has to be said of a run that ended before the protocol's end; ``quick`` says so itself."""
    epochs = record.config.get("trainer", {}).get("max_epochs")
    if record.preset == "full" and record.experiment in EXPERIMENTS and epochs is not None:
        full = EXPERIMENTS[record.experiment].epochs
        if epochs < full:
            yield f"ended after {epochs} of {full} epochs"
