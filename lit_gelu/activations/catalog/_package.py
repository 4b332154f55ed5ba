"""What the rows of this package share."""

from importlib.metadata import version

from lit_gelu.activations.entry import ReadAttributes

REGISTERED_BY = f"lit-gelu {version('lit-gelu')}"
HENDRYCKS_2016 = "Hendrycks and Gimpel 2016, Gaussian Error Linear Units (arXiv 1606.08415)"

NO_ARGUMENTS = ReadAttributes(())
INPLACE = ReadAttributes(("inplace",))
