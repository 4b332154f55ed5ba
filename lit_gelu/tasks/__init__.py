"""The GELU paper's tasks as `LightningModule`s, one file per task."""

from lit_gelu.tasks.activation_task import ActivationTask, ClassificationTask
from lit_gelu.tasks.cifar10_conv_net import CIFAR10ConvNet
from lit_gelu.tasks.cifar100_wide_res_net import CIFAR100WideResNet
from lit_gelu.tasks.mnist_autoencoder import MNISTAutoencoder
from lit_gelu.tasks.mnist_classifier import MNISTClassifier
from lit_gelu.tasks.noise_robustness import RobustnessCurves, noise_robustness
from lit_gelu.tasks.optimizers import AdamEpsilonInsideRoot
from lit_gelu.tasks.timit_frame_classifier import TIMITFrameClassifier
from lit_gelu.tasks.tweet_tagger import TweetTagger

__all__ = [
    "ActivationTask", "AdamEpsilonInsideRoot", "CIFAR10ConvNet", "CIFAR100WideResNet", "ClassificationTask",
    "MNISTAutoencoder", "MNISTClassifier", "RobustnessCurves", "TIMITFrameClassifier", "TweetTagger",
    "noise_robustness",
]  # fmt: skip
