"""`TIMITData`: frames of read speech with their phones, from the full corpus or from NLTK's sample of it."""

import os
from pathlib import Path

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from lit_gelu.data.in_memory import Batch, InMemoryDataModule, InMemorySamples, data_root, recorded_path
from lit_gelu.data.timit_corpus import Split, class_numbers, find_sentences, split_sentences
from lit_gelu.data.timit_features import Frames, cached_frames
from lit_gelu.errors import DataError

CONTEXT = 5
_LEAST = 1e-11  # added to the deviation, as in the GELU paper's code


class TIMITData(InMemoryDataModule):
    """Frames of TIMIT's sentences, 11 side by side, each with one of 39 phones: 3,696 training sentences.

    A batch is 64 whole sentences (in the code only), ``(windows, labels)``: windows ``[frames, 286]``,
    ``torch.float32``, the 26 normalised features of the frame and of the five before and after it, the earliest first;
    labels ``[frames]``, ``torch.int64``, positions in `lit_gelu.data.timit_corpus.CLASSES`. At a sentence's edges its
    first or last frame stands again. An epoch of the full corpus has 57 steps of about 19,500 frames. (Hendrycks and
    Gimpel 2016, arXiv 1606.08415, section 3.4, and their code.)

    The features are 12 mel-frequency cepstral coefficients, the log energy and their first derivatives every 10 ms; the
    authors' extractor was not published, ours follows HTK. A frame has the phone at its centre, folded from 61 to 39 as
    by Lee and Hon (1989), with the glottal stop ``q``, which they leave out, as silence. Each feature is normalised by
    its mean and deviation over the training frames. (The paper's code counts the zeros that pad its sentences, and
    takes the mean away from validation and test features twice.)

    The property `split` and the logged hyper-parameters say which corpus was found. ``"core test"``: the full corpus
    (LDC93S1, to be bought), 3,696 training, 1,152 validation and 192 core test sentences. ``"sample"``: NLTK's 16
    speakers, 12 of them training (96 sentences), two validation and two test (16 each): results are **not comparable
    with the paper's**. The SA sentences are left out. Reading audio needs ``pip install 'lit-gelu[speech]'``.

    Args:
        root: Folder that holds the corpus. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        batch_size: Sentences in a batch.
        corpus: Folder of the corpus, an absolute path or one from ``root`` on.
        cache: Folder that the features are kept in (160 MB for the full corpus). ``None`` means ``lit_gelu`` in the
            user's cache (``XDG_CACHE_HOME``); the corpus's own folder is never written to.

    Raises:
        ArgumentError: If an argument is none of the accepted values.

    Example:
        >>> TIMITData(root="data").folder.as_posix()
        'data/timit'
    """

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        batch_size: int = 64,
        corpus: str | os.PathLike[str] = "timit",
        cache: str | os.PathLike[str] | None = None,
    ) -> None:
        super().__init__(batch_size)
        self.save_hyperparameters({"corpus": recorded_path(corpus)})
        self.folder = data_root(root) / corpus
        self.cache = None if cache is None else Path(cache)
        self._split: Split | None = None
        self._frames: list[Frames] = []
        self._normalisation: NormaliseFrames | None = None

    @property
    def split(self) -> str:
        """Which split it is: ``"core test"`` or ``"sample"``."""
        return self._sentences().kind

    def remarks(self) -> dict[str, str]:
        """Say which corpus was found, once it has been looked for."""
        return {} if self._split is None else {"corpus_found": self._split.description}

    def prepare_data(self) -> None:
        """Find the sentences, and compute their features unless that was done before."""
        if self._frames:
            return
        split = self._sentences()
        frames = cached_frames([*split.train, *split.val, *split.test], self.folder, self.cache)
        lengths = torch.split(frames.lengths, [len(part) for part in (split.train, split.val, split.test)])
        counts = [int(part.sum()) for part in lengths]
        features, phones = torch.split(frames.features, counts), torch.split(frames.phones, counts)
        self._frames = list(map(Frames, features, phones, lengths))
        deviation, mean = torch.std_mean(features[0].double(), dim=0, correction=0)  # of the population
        self._normalisation = NormaliseFrames(mean.float(), (deviation + _LEAST).float())

    def load_train_and_val(self) -> tuple["SentenceFrames", "SentenceFrames"]:
        """Return the training sentences (3,696 of the full corpus) and those of validation (1,152)."""
        return self._set(0), self._set(1)

    def load_test(self) -> "SentenceFrames":
        """Return the test sentences (192 of the full corpus)."""
        return self._set(2)

    def normalisation(self) -> "NormaliseFrames":
        """Return what normalises windows of features: ``nn.Sequential(data.normalisation(), model)`` exports it."""
        if self._normalisation is None:
            raise DataError(f"{type(self).__name__} has not read its data yet: call setup('fit') first.")
        return self._normalisation

    def _sentences(self) -> Split:
        """Return the sentences of each set; look for them once, and say what they are."""
        if self._split is None:
            self._split = split_sentences(find_sentences(self.folder))
            rank_zero_info(self._split.description)
        return self._split

    def _set(self, number: int) -> "SentenceFrames":
        """Return the training (0), the validation (1) or the test set (2)."""
        self.prepare_data()
        frames = self._frames[number]
        return SentenceFrames(self.normalisation()(frames.features), class_numbers()[frames.phones], frames.lengths)


class SentenceFrames(InMemorySamples):
    """Frames of sentences, taken out a sentence at a time, each frame with the five before and the five after it."""

    # Length and indices count sentences; inputs and labels are of frames. A sentence is padded by repeating its first
    # and its last frame. Windows are cut when a batch is taken: kept, they would take 11 times the memory.

    def __init__(self, features: Tensor, labels: Tensor, lengths: Tensor) -> None:
        super().__init__(features, labels)
        ends = lengths.cumsum(0)
        # All that `move_to` moves; of each frame the first and the last row of its sentence.
        firsts, lasts = (rows.repeat_interleave(lengths) for rows in (ends - lengths, ends - 1))
        self.tensors = (features, labels, firsts, lasts)
        self._ends = [0, *ends.tolist()]

    def __len__(self) -> int:
        return len(self._ends) - 1

    @property
    def inputs(self) -> Tensor:
        """The windows of all frames, ``[frames, 11 * features]``, cut anew at each call."""
        return self._windows(torch.arange(len(self.labels), device=self.labels.device))

    def __getitem__(self, index: int) -> Batch:
        """Return the windows and labels of one sentence."""
        return self.__getitems__([index])

    def __getitems__(self, indices: list[int]) -> Batch:
        """Return windows ``[frames, 11 * features]`` and labels of some sentences, one sentence after the other."""
        rows = torch.cat([torch.arange(self._ends[index], self._ends[index + 1]) for index in indices])
        rows = rows.to(self.labels.device)
        return self._windows(rows), self.labels[rows]

    def _windows(self, rows: Tensor) -> Tensor:
        features, _, firsts, lasts = self.tensors
        neighbours = rows[:, None] + torch.arange(-CONTEXT, CONTEXT + 1, device=rows.device)
        return features[neighbours.clamp(firsts[rows, None], lasts[rows, None])].flatten(start_dim=1)


class NormaliseFrames(nn.Module):
    """Normalises windows of features as they come out of the extraction: what a deployed net wants before it."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, windows: Tensor) -> Tensor:
        """Return the windows, or frames, with each feature normalised."""
        frames = torch.unflatten(windows, -1, (-1, len(self.mean)))
        normalised: Tensor = (frames - self.mean) / self.deviation
        return normalised.flatten(start_dim=-2)
