"""`TIMITData`: frames of read speech with their phones, from the full corpus or from NLTK's sample of it."""

import os
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch.utilities import rank_zero_info

from lit_gelu.arguments import check_flags, check_one_of
from lit_gelu.data.in_memory import InMemoryDataModule, data_root, recorded_path
from lit_gelu.data.timit.corpus import GLOTTAL_STOP, PHONES, Split, class_numbers, find_sentences, split_sentences
from lit_gelu.data.timit.features import Frames, cached_frames
from lit_gelu.data.timit.frames import Normalisation, NormaliseFrames, SentenceFrames, fit_normalisation
from lit_gelu.errors import DataError

GlottalStop = Literal["sil", "ignore"]


class TIMITData(InMemoryDataModule):
    """Frames of TIMIT's sentences, 11 side by side, each with one of 39 phones: 3,696 training sentences.

    A batch is 64 whole sentences, ``(windows, labels)``: windows ``[frames, 286]``, ``torch.float32``, the 26
    normalised features of the frame and of the five before and after it, the earliest first; labels ``[frames]``,
    ``torch.int64``, positions in `lit_gelu.data.timit.corpus.CLASSES`. At a sentence's edges its first or last frame
    stands again. An epoch of the full corpus has 57 steps of about 19,500 frames; the last 48 sentences are dropped.
    (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 3.4, and their code; the batch is in the code only.)

    The features are 12 mel-frequency cepstral coefficients, the log energy and their first derivatives every 10 ms
    (`lit_gelu.data.timit.features`). The authors' extractor was not published; ours follows HTK, an assumption. A
    frame has the phone at its centre, folded from 61 to 39 as by Lee and Hon (1989). Each feature is normalised by
    its mean and deviation over the training frames.

    Which corpus is read decides the split, and a message, the property `split` and the logged hyper-parameters say
    which it is. ``"core test"``: the full corpus (LDC93S1, to be bought), 3,696 training, 1,152 validation and 192
    core test sentences. ``"sample"``: NLTK's 16 speakers, of whom 12 are training (96 sentences), two validation and
    two test (16 each): results are **not comparable with the paper's**. The SA sentences are left out of both.

    Reading audio needs ``pip install 'lit-gelu[speech]'``. The features are kept in a file (160 MB for the full
    corpus), so that they are computed once.

    Args:
        root: Folder that holds the corpus. ``None`` means the environment variable ``LIT_GELU_DATA``, or ``data``.
        batch_size: Sentences in a batch.
        corpus: Folder of the corpus, an absolute path or one from ``root`` on.
        cache: Folder that the features are kept in. ``None`` means ``lit_gelu`` in the user's cache folder
            (``XDG_CACHE_HOME``, or ``~/.cache``); the corpus's own folder is never written to.
        glottal_stop: The phone ``q``, which Lee and Hon's folding leaves out: ``"sil"`` counts it as silence,
            ``"ignore"`` leaves its frames out of loss and errors (they stay in their neighbours' windows).
        padded_statistics: Whether to normalise by the statistics of sentences padded with zeros to the length of the
            longest, as the paper's code does. What its padding holds is not published; zeros are an assumption.
        centre_twice: Whether to take the training mean away from the validation and test features twice, as the
            paper's code does (D6). It only makes sense with features that were centred before; ours are not.
        allow_incomplete: Whether a full corpus that lacks sentences is accepted.

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
        glottal_stop: GlottalStop = "sil",
        padded_statistics: bool = False,
        centre_twice: bool = False,
        allow_incomplete: bool = False,
    ) -> None:
        super().__init__(batch_size)
        check_one_of(("sil", "ignore"), glottal_stop=glottal_stop)
        check_flags(padded_statistics=padded_statistics, centre_twice=centre_twice, allow_incomplete=allow_incomplete)
        self.save_hyperparameters({
            "batch_size": batch_size,
            "glottal_stop": glottal_stop,
            "padded_statistics": padded_statistics,
            "centre_twice": centre_twice,
            "allow_incomplete": allow_incomplete,
            "corpus": recorded_path(corpus),
        })
        self.folder = data_root(root) / corpus
        self.cache = None if cache is None else Path(cache)
        self.glottal_stop = glottal_stop
        self.padded_statistics = padded_statistics
        self.centre_twice = centre_twice
        self.allow_incomplete = allow_incomplete
        self._split: Split | None = None
        self._frames: tuple[Frames, Frames, Frames] | None = None
        self._normalisation: Normalisation | None = None

    @property
    def split(self) -> str:
        """Which split it is: ``"core test"``, ``"sample"`` or ``"incomplete"``."""
        return self._sentences().kind

    def remarks(self) -> dict[str, str]:
        """Say which corpus was found, once it has been looked for."""
        return {} if self._split is None else {"corpus_found": self._split.description}

    def prepare_data(self) -> None:
        """Find the sentences, and compute their features unless that was done before."""
        self._read()

    def load_train_and_val(self) -> tuple[SentenceFrames, SentenceFrames]:
        """Return the training sentences (3,696 of the full corpus) and those of validation (1,152)."""
        return self._set(0), self._set(1)

    def load_test(self) -> SentenceFrames:
        """Return the test sentences (192 of the full corpus)."""
        return self._set(2)

    def normalisation(self) -> NormaliseFrames:
        """Return what normalises windows of features: ``nn.Sequential(data.normalisation(), model)`` exports it."""
        if self._normalisation is None:
            raise DataError(f"{type(self).__name__} has not read its data yet: call setup('fit') first.")
        return NormaliseFrames(self._normalisation)

    def _sentences(self) -> Split:
        """Return the sentences of each set; look for them once, and say what they are."""
        if self._split is None:
            self._split = split_sentences(find_sentences(self.folder), self.allow_incomplete)
            rank_zero_info(self._split.description)
        return self._split

    def _read(self) -> tuple[Frames, Frames, Frames]:
        """Return the frames of each set."""
        if self._frames is None:
            split = self._sentences()
            sets = (split.train, split.val, split.test)
            frames = cached_frames([*split.train, *split.val, *split.test], self.folder, self.cache)
            lengths = torch.split(frames.lengths, [len(part) for part in sets])
            counts = [int(part.sum()) for part in lengths]
            features, phones = torch.split(frames.features, counts), torch.split(frames.phones, counts)
            train, val, test = map(Frames, features, phones, lengths)
            self._frames = train, val, test
            self._normalisation = fit_normalisation(train.features, train.lengths, self.padded_statistics)
        return self._frames

    def _set(self, number: int) -> SentenceFrames:
        """Return the training (0), the validation (1) or the test set (2)."""
        frames = self._read()[number]
        module = self.normalisation()
        centred = frames.features - (2 * module.mean if self.centre_twice and number else module.mean)
        classes = class_numbers()
        if self.glottal_stop == "ignore":
            classes[PHONES.index(GLOTTAL_STOP)] = -1
        return SentenceFrames(centred / module.deviation, classes[frames.phones], frames.lengths)
