"""What can be wrong with a page or with what one is made from."""

from lit_gelu.errors import LitGeluError


class ReportFileError(LitGeluError, ValueError):
    """A file that is no page of a run, or whose data are damaged."""


class ReportSourceError(LitGeluError, ValueError):
    """A folder or file that no page can be made of."""
