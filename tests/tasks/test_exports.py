"""Every task from its checkpoint to an ONNX file: it computes the same, and what belongs to training is not in it."""

import inspect

import onnx
import pytest
import torch
from small_task import SmallData, quiet_trainer

from lit_gelu import tasks
from lit_gelu.export import OnnxPredictor, check_parity, export_onnx

# Sizes that are quick, and all noise that a task has in training.
SMALL = {
    "MNISTClassifier": {"keep": 0.5},
    "MNISTAutoencoder": {},
    "TweetTagger": {"keep": 0.5},
    "TIMITFrameClassifier": {"keep": 0.5, "width": 16},
    "CIFAR10ConvNet": {"keep": 0.5, "noise": 0.15, "channels": (4, 8), "epochs": 2},
    "CIFAR100WideResNet": {"dropout": 0.3, "blocks_per_stage": 1, "width_factor": 1, "epochs": 2},
}
NOISELESS = {"MNISTAutoencoder"}  # the paper's net has no dropout
TASKS = [
    name
    for name, member in vars(tasks).items()
    if inspect.isclass(member) and issubclass(member, tasks.ActivationTask) and not inspect.isabstract(member)
]
# Operators that draw numbers, and what evaluation mode makes of a batch's own statistics.
OF_TRAINING = {"Dropout", "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
OF_TRAINING |= {"RandomUniformLike", "ReduceVariance"}


def trained_a_step(name, activation, folder):
    """A checkpoint after two steps on made-up samples, so that nothing learned or averaged is as at the start."""
    torch.manual_seed(0)
    model = getattr(tasks, name)(activation=activation, **SMALL[name])
    trainer = quiet_trainer(max_steps=2, enable_checkpointing=True, default_root_dir=folder)
    trainer.fit(model, datamodule=SmallData(model.example_input_array.shape[1:]))
    return model, trainer.checkpoint_callback.best_model_path


def operators(path):
    """Operators of the graph and of what it calls, subgraphs included."""
    model, names = onnx.load(path), set()
    graphs = [model.graph, *model.functions]
    while graphs:
        for node in graphs.pop().node:
            names.add(node.op_type)
            graphs += [attribute.g for attribute in node.attribute if attribute.type == onnx.AttributeProto.GRAPH]
    return names


def test_every_task_is_exported_here():
    assert set(SMALL) == set(TASKS)


@pytest.mark.parametrize("activation", ["gelu_tanh", pytest.param("zero_identity_map", marks=pytest.mark.full)])
@pytest.mark.parametrize("name", [TASKS[0], *(pytest.param(name, marks=pytest.mark.full) for name in TASKS[1:])])
def test_from_the_checkpoint_to_a_file_without_what_belongs_to_training(tmp_path, name, activation):
    model, checkpoint = trained_a_step(name, activation, tmp_path)
    inputs = torch.rand(5, *model.example_input_array.shape[1:], generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model.eval()(inputs)
    noisy = name not in NOISELESS or activation == "zero_identity_map"
    assert model.is_noisy == noisy
    model.train()
    assert torch.equal(model(inputs), model(inputs)) != noisy

    loaded = getattr(tasks, name).load_from_checkpoint(checkpoint, weights_only=True)
    path = tmp_path / "task.onnx"
    export_onnx(loaded, path)
    assert not operators(path) & OF_TRAINING
    assert check_parity(loaded, path, inputs).passed

    outputs = OnnxPredictor(path)(inputs)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=1e-4)
    for row, alone in zip(outputs, inputs.split(1), strict=True):  # each sample on its own, whatever its batch
        torch.testing.assert_close(OnnxPredictor(path)(alone)[0], row, rtol=0, atol=1e-4)
