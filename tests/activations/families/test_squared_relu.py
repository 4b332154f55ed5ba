"""Squared ReLU."""

from activation_contract import ActivationContract
from activation_oracles import cases_of


class TestSquaredRelu(ActivationContract):
    cases = cases_of("relu2")
