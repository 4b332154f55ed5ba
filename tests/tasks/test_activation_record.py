"""A net whose activations were swapped is loaded from its checkpoint as it was saved."""

import pytest
import torch
from small_task import SmallData, quiet_trainer

from lit_gelu import activations, surgery
from lit_gelu.callbacks import ActivationSwap
from lit_gelu.tasks import MNISTClassifier


def saved(tmp_path, callbacks=(), kind=MNISTClassifier, **swaps):
    """Train a net for two epochs with swaps before it, and return it with its checkpoint."""
    torch.manual_seed(0)
    model = kind("relu", hidden_layers=3)
    if swaps:
        surgery.swap(model, swaps)
    trainer = quiet_trainer(max_epochs=2, callbacks=list(callbacks))
    trainer.fit(model, datamodule=SmallData())
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    return model, tmp_path / "last.ckpt"


def outputs(model):
    with torch.no_grad():
        return model.eval()(model.example_input_array)


@pytest.mark.parametrize("spec", ["gelu", "prelu", "swish(beta=1.5, learnable=True)", "zero_identity_map"])
def test_swapped_by_hand(tmp_path, spec):
    model, path = saved(tmp_path, **{"hidden.[12].*": spec})
    loaded = MNISTClassifier.load_from_checkpoint(path, weights_only=True)
    assert [str(activations.spec_of(layer.activation)) for layer in loaded.hidden] == [
        str(activations.spec_of(layer.activation)) for layer in model.hidden
    ]
    assert torch.equal(outputs(loaded), outputs(model))


# Without the callback, Lightning warns that the checkpoint has a state for it.
@pytest.mark.filterwarnings("ignore:.*Please add the following callbacks:UserWarning")
@pytest.mark.parametrize("with_callback", [False, True])
def test_a_trainer_that_loads_the_checkpoint_tests_the_swapped_net(tmp_path, with_callback):
    swap = {"activation:relu": "gelu"}
    model, path = saved(tmp_path, [ActivationSwap(swap, at_epoch=1)])
    (expected,) = quiet_trainer().test(model, datamodule=SmallData(), verbose=False)
    callbacks = [ActivationSwap(swap, at_epoch=1)] if with_callback else []
    fresh, trainer = MNISTClassifier("relu", hidden_layers=3), quiet_trainer(callbacks=callbacks)
    (result,) = trainer.test(fresh, datamodule=SmallData(), ckpt_path=path, verbose=False)
    assert result == expected
