"""What can go wrong when an activation is named, registered or written down, by the names that this package uses."""

from lit_gelu.errors import ArgumentError, MissingExtraError, SpecError, UnsupportedRunError
from lit_gelu.errors import UnknownActivationError as UnknownActivationError

ActivationArgumentError = ArgumentError
DifferentChannelsError = ArgumentError  # a function of its own for every channel, where one of one number is meant
DuplicateActivationError = ArgumentError
NoGaussianMomentsError = ArgumentError
UnknownLibraryError = ArgumentError
ActivationSpecError = SpecError
OpaqueActivationError = SpecError
StoredSpecError = SpecError
UnknownArgumentsError = SpecError
MissingLibraryError = MissingExtraError
AlreadyInstalledError = UnsupportedRunError
