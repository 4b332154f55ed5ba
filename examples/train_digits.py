"""Train the GELU paper's net on the bundled digits, with an activation by name: ``python examples/train_digits.py``.

No download; a few seconds on a CPU. Another activation: ``python examples/train_digits.py "elu(alpha=0.5)"``.
"""

import sys

from lightning.pytorch import Trainer, seed_everything

from lit_gelu.data import DigitsData
from lit_gelu.tasks import MNISTClassifier


def main(activation: str = "gelu") -> None:
    """Train, then test the weights of the last epoch.

    Args:
        activation: Any activation by name.
    """
    seed_everything(0)
    model = MNISTClassifier(activation=activation)
    data = DigitsData()
    trainer = Trainer(max_epochs=20, devices=1, log_every_n_steps=10, default_root_dir="runs")
    trainer.fit(model, datamodule=data)
    (result,) = trainer.test(model, datamodule=data)
    print(f"{model.activation_spec}: test error {result['test_error']:.2%}, test loss {result['test_loss']:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
