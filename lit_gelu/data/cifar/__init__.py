"""CIFAR-10 and CIFAR-100: torchvision's files or an arrays file, and how the GELU paper's code fed each set."""

from lit_gelu.data.cifar.base import CIFARData
from lit_gelu.data.cifar.cifar10 import CIFAR10Data
from lit_gelu.data.cifar.cifar100 import CIFAR100Data

__all__ = ["CIFAR10Data", "CIFAR100Data", "CIFARData"]
