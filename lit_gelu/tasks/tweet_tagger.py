"""`TweetTagger`: the GELU paper's net for the parts of speech of tweets (section 3.3)."""

from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.tasks.activation_task import ClassificationTask, check_inputs, check_numbers

WINDOW = 3
WIDTH = 256
CLASSES = 25


class TweetTagger(ClassificationTask):
    """150 -> 2 x [Linear 256, activation, dropout] -> Linear 25, for windows of three words: 110,873 parameters.

    As Hendrycks and Gimpel trained it (arXiv 1606.08415, section 3.3 and their code): the fixed 50-d vectors of a token
    and of its two neighbours side by side; keep .8; initialisation, loss and Adam are those of `MNISTClassifier`; 30
    epochs in batches of 16 (both in the code only); GELU in its tanh form. The paper's test errors, medians of five:
    GELU 12.57 %, ReLU 12.67 %, ELU 12.91 %. They need its word vectors, see `lit_gelu.data.TweetData`.

    Args:
        activation: Any form that `lit_gelu.activations.create` takes; each layer has an instance of its own.
        learning_rate: Adam's learning rate; the paper tunes it over 1e-3, 1e-4 and 1e-5.
        keep: Probability of keeping a unit after each hidden activation in training.
        vector_size: Size of a word's vector.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If a number is out of its range, or the activation changes the shape of its input.

    Example:
        >>> TweetTagger(activation="gelu_tanh")(torch.zeros(4, 150)).shape
        torch.Size([4, 25])
    """

    def __init__(
        self,
        activation: str | dict[str, Any] = "gelu_tanh",
        learning_rate: float = 1e-3,
        keep: float = 0.8,
        vector_size: int = 50,
        registry: ActivationRegistry | None = None,
    ) -> None:
        super().__init__(activation, registry)
        check_numbers(learning_rate=learning_rate, keep=keep, vector_size=vector_size)
        self.vector_size = vector_size
        self.learning_rate = learning_rate
        fed = WINDOW * vector_size
        self.hidden = self.dense_layers(activation, (fed, WIDTH, WIDTH), keep)
        self.output = nn.Linear(WIDTH, CLASSES)
        self.init_dense_layers_()
        self.example_input_array = torch.randn(2, fed, generator=torch.Generator().manual_seed(0))

    def forward(self, windows: Tensor) -> Tensor:
        """Return the logits ``[tokens, 25]``, in the order of `lit_gelu.data.tweets.TAGS`, of windows of 3 vectors."""
        width = WINDOW * self.vector_size
        fits = windows.ndim == 2 and windows.shape[1] == width
        check_inputs(windows, fits, f"[tokens, {width}], {WINDOW} word vectors side by side (vector_size=)")
        logits: Tensor = self.output(self.hidden(windows))
        return logits
