"""The kernels of whole steps: in Triton's interpreter (see `interpreted_net_steps`), and compiled for GPUs."""

import interpreted_checks
import pytest

from lit_gelu.replicas.device.kernel_tiles import tiles_of, unit_of

test_checks = interpreted_checks.tests_of(
    "interpreted_net_steps.py",
    "deep_nets_with_odd_widths",
    "some_replicas_are_measured",
    "a_class_of_no_number_is_predicted_as_torch_does",
    "a_loss_that_is_no_number_is_told",
    "labels_that_are_no_classes_are_refused",
)

# The layers of the paper's MNIST net and its tweets' net: samples in a batch, outputs, inputs.
LAYERS = [(128, 128, 784), (128, 128, 128), (16, 256, 160), (16, 256, 256), (1000, 128, 784), (1000, 256, 150)]
# Its step of parameters has too few registers, and was 2 % faster all the same (benchmarks/replica_tiles.py).
SPILLED = LAYERS[0]
POINTERS = {
    **dict.fromkeys(("seeds_ptr", "steps_ptr", "labels_ptr", "place_ptr"), "*i64"),
    **dict.fromkeys(("members_ptr", "slots_ptr", "rows_ptr", "kinds_ptr", "highest_ptr", "active_ptr"), "*i32"),
    "is_free_ptr": "*i1",
}
NUMBERS = frozenset({"rest1", "beta2", "rest2", "eps"})


def compiled(kernel, constants, warps, stages, generation=90):
    """Compile a kernel as it is started, and read its machine code."""
    from compiled_kernels import compile_kernel, machine_code

    types = {}
    for name in kernel.arg_names:
        if name not in constants:
            number = "fp32" if name in NUMBERS else "i32"
            types[name] = POINTERS.get(name, "*fp32") if name.endswith("_ptr") else number
    code = compile_kernel(kernel, generation, types, constants, warps, stages)
    return machine_code(code, constants["ROWS"] * constants.get("COLUMNS", constants.get("CLASSES")), warps)


def constants_of(kernel, rows, columns, terms):
    """Return the constants of a kernel's tiles, its warps and stages."""
    constants = tiles_of(kernel, rows, columns, terms).constants()
    return constants, constants.pop("num_warps"), constants.pop("num_stages")


def has_tensor_cores(code):
    return any(name.startswith(("HMMA", "HGMMA")) for name in code.operations)


@pytest.mark.one_in(12)
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: "x".join(map(str, layer)))
def test_a_layer_is_computed_in_registers_by_tensor_cores(layer):
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from lit_gelu.replicas.device import net_kernels

    batch, width, features = layer
    trains = batch < 1000
    flags = {"GATHERS": False, "SHARED": not trains, "KEEPS": trains, "SPLITS": False, "DROPS": trains}
    constants, *how = constants_of("forward", batch, width, features)
    codes = [compiled(net_kernels.layer_forward, {**flags, "UNIT": unit_of(features), **constants}, *how)]
    if trains:
        constants, *how = constants_of("backward", batch, width, width)
        codes.append(compiled(net_kernels.layer_backward, {"DROPS": True, **constants}, *how))
        constants, *how = constants_of("parameters", width, features, batch)
        flags = {"GATHERS": features != width, "UNIT": unit_of(features)}
        codes.append(compiled(net_kernels.parameter_step, {**flags, **constants}, *how))
    for code in codes:
        assert code.beside_registers == 0 or layer == SPILLED
        assert has_tensor_cores(code)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kernel", ["output_layer", "sample_values"])
@pytest.mark.parametrize(("batch", "classes", "width"), [(128, 10, 128), (16, 25, 256), (5000, 25, 256)])
def test_the_output_layer_too(kernel, batch, classes, width):
    pytest.importorskip("triton", reason="Triton has no build for this system")
    from lit_gelu.replicas.device import net_kernels

    constants, *how = constants_of("output", batch, classes, width)
    constants["CLASSES"] = constants.pop("COLUMNS")
    code = compiled(getattr(net_kernels, kernel), constants, *how)
    assert has_tensor_cores(code)
    assert kernel == "output_layer" or code.beside_registers == 0


@pytest.mark.parametrize(("features", "unit"), [(784, 16), (256, 16), (300, 4), (150, 2), (51, 1)])
def test_rows_are_read_by_as_many_numbers_as_their_size_allows(features, unit):
    assert unit_of(features) == unit


@pytest.mark.parametrize("kernel", ["forward", "backward", "parameters", "output"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (16, 25, 150), (17, 130, 33), (5000, 2048, 5000)])
def test_tiles_are_powers_of_two_that_fit(kernel, sizes):
    tiles = tiles_of(kernel, *sizes)
    for number in tiles[:3]:
        assert number >= 16
        assert number & (number - 1) == 0
    assert tiles.rows * tiles.columns <= 128 * 128
