"""What has to be said beside the numbers of runs whose protocol, data or arithmetic are not the paper's."""

from collections.abc import Iterable, Iterator

from gelu_paper.experiments import EXPERIMENTS
from gelu_paper.records import RunRecord

QUICK = "quick: not the paper's protocol"
# How `TIMITData` describes the full corpus with its standard core test; everything else is another set.
_FULL_TIMIT = "TIMIT, full corpus, standard core test"


def labels_of(records: Iterable[RunRecord]) -> list[str]:
    """Return what must be said wherever numbers of these runs are shown, each text once; `QUICK` first."""
    runs = list(records)
    quick = [QUICK] if any(run.preset != "full" for run in runs) else []
    return list(dict.fromkeys([*quick, *(text for run in runs for text in _labels(run))]))


def _labels(run: RunRecord) -> Iterator[str]:
    """Yield what a run's configuration says, and what its data module said of its data."""
    name = run.config["data"]["class_path"].rpartition(".")[2]
    arguments = run.config["data"]["init_args"]
    if name == "TweetData" and arguments.get("clusters"):
        yield "substitute data: bit paths of word clusters, not the paper's word vectors"
    corpus = str(run.data.get("corpus", "a corpus that the record does not name"))
    if name == "TIMITData" and not corpus.startswith(_FULL_TIMIT):
        sample = "NLTK's sample of TIMIT, not the corpus"
        yield f"substitute data: {sample if 'sample' in corpus else corpus.partition(':')[0]}"
    if name.startswith("CIFAR") and run.data.get("arrays") is not None:
        yield f"images from {run.data['arrays']}, which need not be the whole of CIFAR"
    if name == "DigitsData":
        yield "substitute data: scikit-learn's digits, not MNIST"
    for argument, part in (("train_samples", "training"), ("test_samples", "test")):
        if arguments.get(argument) is not None:
            yield f"only the first {arguments[argument]} {part} samples"
    epochs, full = run.config["trainer"]["max_epochs"], EXPERIMENTS[run.experiment].epochs
    if run.preset == "full" and epochs < full:
        yield f"ended after {epochs} of {full} epochs"
    if (precision := run.config["trainer"].get("precision", "32-true")) != "32-true":
        yield f"precision {precision}, not 32 bit"
