"""`TIMITFrameClassifier`: the GELU paper's net for the phones of frames of speech (section 3.4)."""

from typing import Any

import torch
from torch import Tensor, nn

from lit_gelu.activations import ActivationRegistry
from lit_gelu.errors import ArgumentError
from lit_gelu.tasks.activation_task import ClassificationTask, check_inputs, check_numbers

FEATURES = 11 * 26
CLASSES = 39


class TIMITFrameClassifier(ClassificationTask):
    """286 -> 5 x [Linear 2048, activation, dropout] -> Linear 39, for windows of 11 frames: 17,453,095 parameters.

    As Hendrycks and Gimpel trained it (arXiv 1606.08415, section 3.4 and their code): keep .5 after each hidden
    activation, none on the input; initialisation, loss and Adam are those of `MNISTClassifier`; 30 epochs in batches of
    64 sentences (both in the code only), 1,710 steps; GELU in its tanh form. The paper's test errors at the lowest
    validation error, medians of five: GELU 29.3 %, ReLU 29.5 %, ELU 29.6 %. They need the full corpus, see
    `lit_gelu.data.TIMITData`.

    The paper says 39 outputs; its code's softmax has 2048, of which 39 ever get a label, because its last matrix is
    never used: ``outputs=2048``, 21,569,536 parameters. Its figures are means of the batches' means, although
    batches have different numbers of frames; ours are means over all frames.

    Args:
        activation: Any form that `lit_gelu.activations.create` takes; each layer has an instance of its own.
        learning_rate: Adam's learning rate; the paper tunes it over 1e-3, 1e-4 and 1e-5.
        keep: Probability of keeping a unit after each hidden activation in training.
        width: Units of a hidden layer.
        outputs: Classes that the net tells apart, at least the 39 that the labels name.
        registry: Where the activation's name is looked up; ``None`` means `lit_gelu.activations.registry`.

    Raises:
        ArgumentError: If a number is out of its range, or the activation changes the shape of its input.

    Example:
        >>> TIMITFrameClassifier(activation="gelu_tanh", width=64)(torch.zeros(4, 286)).shape
        torch.Size([4, 39])
    """

    def __init__(
        self,
        activation: str | dict[str, Any] = "gelu_tanh",
        learning_rate: float = 1e-3,
        keep: float = 0.5,
        width: int = 2048,
        outputs: int = CLASSES,
        registry: ActivationRegistry | None = None,
    ) -> None:
        super().__init__(activation, registry)
        check_numbers(learning_rate=learning_rate, keep=keep, width=width, outputs=outputs)
        if outputs < CLASSES:
            raise ArgumentError(f"outputs={outputs} is not accepted. Give {CLASSES} (the phones) or more.")
        self.learning_rate = learning_rate
        self.hidden = self.dense_layers(activation, (FEATURES, *[width] * 5), keep)
        self.output = nn.Linear(width, outputs)
        self.init_dense_layers_()
        self.example_input_array = torch.randn(2, FEATURES, generator=torch.Generator().manual_seed(0))

    def forward(self, windows: Tensor) -> Tensor:
        """Return the logits ``[frames, outputs]`` of windows of normalised features, ``[frames, 286]``."""
        fits = windows.ndim == 2 and windows.shape[1] == FEATURES
        check_inputs(windows, fits, f"[frames, {FEATURES}], 26 features of 11 frames side by side")
        logits: Tensor = self.output(self.hidden(windows))
        return logits
