"""Data sets as `LightningDataModule`s, one file per data set."""

from lit_gelu.data.cifar import CIFAR10Data, CIFAR100Data, CIFARData
from lit_gelu.data.digits import DigitsData
from lit_gelu.data.in_memory import InMemoryDataModule, InMemorySamples
from lit_gelu.data.mnist import MNISTData
from lit_gelu.data.resumable_loader import ResumableDataLoader
from lit_gelu.data.timit import TIMITData
from lit_gelu.data.tweets import TweetData
from lit_gelu.errors import DataError
from lit_gelu.extras import MissingExtraError

__all__ = [
    "CIFAR10Data", "CIFAR100Data", "CIFARData", "DataError", "DigitsData", "InMemoryDataModule", "InMemorySamples",
    "MNISTData", "MissingExtraError", "ResumableDataLoader", "TIMITData", "TweetData",
]  # fmt: skip
