"""What can go wrong when curvature is measured."""

from lit_gelu.errors import LitGeluError


class CurvatureArgumentError(LitGeluError, ValueError):
    """An argument that measuring cannot work with."""
