"""The GELU paper's tasks as `LightningModule`s, one file per task."""

from lit_gelu.tasks.activation_task import ActivationTask
from lit_gelu.tasks.classification import ClassificationTask
from lit_gelu.tasks.errors import CheckpointMismatchError, TaskArgumentError, TaskInputError
from lit_gelu.tasks.mnist_autoencoder import MNISTAutoencoder
from lit_gelu.tasks.mnist_classifier import MNISTClassifier
from lit_gelu.tasks.tweet_tagger import TweetTagger

__all__ = [
    "ActivationTask",
    "CheckpointMismatchError",
    "ClassificationTask",
    "MNISTAutoencoder",
    "MNISTClassifier",
    "TaskArgumentError",
    "TaskInputError",
    "TweetTagger",
]
