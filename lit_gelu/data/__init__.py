"""Data sets as `LightningDataModule`s, one file per data set."""

from lit_gelu.data.digits import DigitsData
from lit_gelu.data.errors import CorruptDataError, DataArgumentError, DataError, DataNotFoundError
from lit_gelu.data.in_memory import InMemoryDataModule, InMemoryImages, InMemorySamples
from lit_gelu.data.mnist import MNISTData
from lit_gelu.data.tweets import TweetData

__all__ = [
    "CorruptDataError",
    "DataArgumentError",
    "DataError",
    "DataNotFoundError",
    "DigitsData",
    "InMemoryDataModule",
    "InMemoryImages",
    "InMemorySamples",
    "MNISTData",
    "TweetData",
]
