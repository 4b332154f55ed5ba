"""Specs out of files, of any form."""

from fuzzing import fuzzed, plain, spec_texts

from lit_gelu import activations
from lit_gelu.activations import ActivationSpec, building_from_file
from lit_gelu.activations.errors import ActivationSpecError


def resolve(value, folder):
    spec = activations.registry.stored.resolve(value)
    assert activations.registry.stored.resolve(str(spec)) == spec
    activations.spec_of(activations.registry.stored.create(value))


def create_while_building(value, folder):
    with building_from_file():
        activations.create(value)


def parse(value, folder):
    try:
        spec = ActivationSpec.parse(value)
    except ActivationSpecError:
        return
    assert ActivationSpec.parse(str(spec)) == spec


test_texts_are_resolved = fuzzed(spec_texts, resolve)
test_plain_data_is_resolved = fuzzed(plain, resolve)
test_modules_that_are_built_from_a_file = fuzzed(spec_texts | plain, create_while_building)
test_texts_are_parsed = fuzzed(spec_texts, parse)
