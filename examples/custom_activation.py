"""Register an activation of your own, train a net with it, export it: ``python examples/custom_activation.py``.

No download; some seconds on a CPU. Writes into ``runs/``.
"""

import torch
from lightning.pytorch import Trainer, seed_everything
from torch import Tensor

from lit_gelu.activations import info, register
from lit_gelu.data import DigitsData
from lit_gelu.export import check_parity, export_onnx
from lit_gelu.tasks import MNISTClassifier


# A plain function is enough; its keyword arguments become arguments of the activation. A module class is registered in
# the same way, and may have parameters that are learned.
@register("bent_identity", aliases=("bent",))
def bent_identity(x: Tensor, amount: float = 0.5) -> Tensor:
    """Return ``x + amount (sqrt(x^2 + 1) - 1)``."""
    return x + amount * (torch.sqrt(x * x + 1) - 1)


def main() -> None:
    """Look at the activation, train with it, export the net and compare the file with it."""
    # Slopes, extrema and gains are computed from the function itself.
    facts = info("bent_identity(amount=0.25)")
    print(f"f'(0) {facts.derivative_at_zero}, largest slope {facts.lipschitz:.4f}, convex: {facts.convex}")

    # From now on the name works wherever an activation is asked for: here, in swap(), and on the command line.
    seed_everything(0)
    model = MNISTClassifier(activation="bent(amount=0.25)")
    data = DigitsData()
    trainer = Trainer(max_epochs=5, devices=1, log_every_n_steps=10, default_root_dir="runs", enable_progress_bar=False)
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data, verbose=False)
    print(f"{model.activation_spec}: test error {result['test_error']:.2%}")

    # The exporter writes the function in ONNX's own operators, and onnxruntime computes what PyTorch computes.
    print(export_onnx(model, "runs/custom_activation.onnx"))
    print(check_parity(model, "runs/custom_activation.onnx", data))


if __name__ == "__main__":
    main()
