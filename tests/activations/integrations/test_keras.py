"""Registered names as ``activation`` of Keras' layers, where Keras computes with PyTorch."""

import importlib

import pytest
import torch

from lit_gelu import activations
from lit_gelu.activations.errors import ActivationSpecError, MissingLibraryError, UnknownActivationError

SAME = ("celu", "elu", "gelu", "hard_sigmoid", "hard_silu", "hard_swish", "linear", "log_sigmoid", "mish", "relu")
SAME += ("relu6", "selu", "sigmoid", "silu", "softplus", "swish", "tanh")


def test_another_backend_is_refused_with_the_remedy(monkeypatch):
    """A stand-in for Keras: two of its backends cannot be in one process."""
    integration = importlib.import_module("lit_gelu.activations.integrations.keras")
    stand_in = type("keras", (), {"backend": type("backend", (), {"backend": staticmethod(lambda: "jax")})})
    monkeypatch.setattr(integration, "import_library", lambda name, library: stand_in)
    with pytest.raises(MissingLibraryError, match=r"keras computes with jax.*KERAS_BACKEND=torch"):
        activations.install("keras")


def test_names_of_keras_that_mean_the_same_are_registered():
    for name in SAME:
        assert not activations.resolve(name).opaque


@pytest.fixture(scope="module")
def keras():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "torch")  # read when keras is imported
        return pytest.importorskip("keras", reason="its names are compared with ours, and tried in its layers")


@pytest.fixture
def installed(keras):
    with activations.install("keras") as installation:
        yield installation


class TestInKeras:
    def test_its_names_are_ours_where_both_have_them(self, keras):
        x = torch.linspace(-12, 12, 4801)
        for name in SAME:
            found = activations.create(name)(x)
            torch.testing.assert_close(found, keras.activations.get(name)(x), rtol=0, atol=1e-6)

    def test_leaky_relu_is_another_one(self, keras):
        x = torch.tensor([-1.0])
        assert keras.activations.get("leaky_relu")(x).item() == pytest.approx(-0.2)
        assert activations.create("leaky_relu")(x).item() == pytest.approx(-0.01)
        with activations.install("keras", override=True):
            assert keras.activations.get("leaky_relu")(x).item() == pytest.approx(-0.01)

    def test_a_layer_computes_it(self, keras, installed):
        layer = keras.layers.Dense(3, activation="gaussian_gelu(sigma=2.0)", kernel_initializer="ones")
        found = layer(torch.tensor([[0.5, -1.0]]))
        wanted = activations.create("gaussian_gelu", sigma=2.0)(torch.tensor(-0.5))
        torch.testing.assert_close(found, wanted.expand(1, 3))

    @pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of Keras' own call of NumPy
    def test_a_model_is_saved_and_loaded_with_it(self, keras, installed, tmp_path):
        shape = keras.Input((2,))
        model = keras.Model(shape, keras.layers.Dense(3, activation="gaussian_gelu(sigma=2.0)")(shape))
        model.save(tmp_path / "net.keras")
        again = keras.saving.load_model(tmp_path / "net.keras")
        assert repr(again.layers[1].activation) == "RegistryActivation('gaussian_gelu(sigma=2.0)')"
        x = torch.randn(4, 2)
        torch.testing.assert_close(again(x), model(x))

    def test_uninstalling_leaves_nothing(self, keras):
        module = importlib.import_module("keras.src.activations")
        before, known = module.ALL_OBJECTS_DICT, dict(keras.saving.get_custom_objects())
        first = activations.install("keras")
        assert activations.install("keras") is first
        first.uninstall()
        assert module.ALL_OBJECTS_DICT is before
        assert keras.saving.get_custom_objects() == known
        with pytest.raises(ValueError, match="Could not interpret"):
            keras.activations.get("gaussian_gelu")

    def test_what_others_add_outlasts_the_names(self, keras):
        module = importlib.import_module("keras.src.activations")
        with activations.install("keras", override=True):
            module.ALL_OBJECTS_DICT["of_somebody"] = torch.tanh
        try:
            assert keras.activations.get("of_somebody") is torch.tanh
        finally:
            del module.ALL_OBJECTS_DICT["of_somebody"]

    def test_a_function_that_would_stay_in_training_mode_is_refused(self, keras, installed):
        with pytest.raises(ActivationSpecError, match=r"random numbers in training.*TorchModuleWrapper"):
            keras.layers.Activation("zero_identity_map")

    def test_wrong_names_are_refused_with_the_remedy(self, keras, installed):
        with pytest.raises(UnknownActivationError, match="Did you mean 'gaussian_gelu'"):
            keras.activations.get("gausian_gelu")
        with pytest.raises(ActivationSpecError, match="TorchModuleWrapper"):
            keras.activations.get("swish(learnable=True)")
        with pytest.raises(ValueError, match="Could not interpret"):  # a path is never imported
            keras.activations.get("torch.nn.elu")
        config = {"class_name": "RegistryActivation", "registered_name": "lit_gelu>RegistryActivation", "module": None}
        with pytest.raises((ActivationSpecError, TypeError)):
            keras.activations.get({**config, "config": {"spec": "torch.nn.elu"}})
