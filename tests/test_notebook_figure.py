"""Figures show themselves in notebooks: as IPython asks for it, with its own integration and without."""

import io

import numpy as np
from matplotlib.image import imread

from lit_gelu import activations
from lit_gelu.notebook_figure import NotebookFigure


def test_the_picture_is_what_was_drawn():
    figure = NotebookFigure(figsize=(2, 1), dpi=50)
    figure.add_axes((0, 0, 0.5, 1)).set_facecolor("red")
    pixels = imread(io.BytesIO(figure._repr_png_()))
    assert pixels.shape[:2] == (50, 100)
    np.testing.assert_array_equal(pixels[25, 25, :3], (1, 0, 0))
    np.testing.assert_array_equal(pixels[25, 75, :3], (1, 1, 1))


def test_a_plot_of_activations_has_one():
    assert activations.plot("gelu", derivatives=[0])._repr_png_().startswith(b"\x89PNG")
