"""Digits drawn by strokes, as a person draws them on the page, and as `drawing.js` makes pixels of them."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from shapes import SHAPES
from torch import Tensor

SEGMENTS = 32  # straight pieces of a drawing, all strokes together
PENS = (0.1, 0.32)  # widths of a stroke, as a share of the drawing's longer side: from a thin pen to a thick one
_RULED = 0.2  # share of the drawings with straight lines between the points
_CHUNK = 128  # drawings that are rendered at once


@dataclass(frozen=True)
class Drawings:
    """Drawings of digits.

    Args:
        segments: Straight pieces ``[drawings, pieces, 4]``, float32: x and y of both ends, y down, in any unit.
        widths: Width of the pen in that unit, ``[drawings]``.
        labels: The digits, ``[drawings]``, int64.
    """

    segments: Tensor
    widths: Tensor
    labels: Tensor


def draw(count: int, seed: int, jitter: float = 0.035) -> Drawings:
    """Draw each digit in all its shapes, every one bent, slanted, turned, stretched and drawn with a pen of its own.

    Args:
        count: Drawings of each digit.
        seed: Of all that is random.
        jitter: Standard deviation of each point's place, as a share of the height.

    Returns:
        ``10 * count`` drawings.
    """
    rng = np.random.default_rng(seed)
    pieces, labels = [], []
    for digit, shapes in SHAPES.items():
        for i, shape in enumerate(shapes):
            number = len(range(i, count, len(shapes)))
            pieces.append(_bent([_points(stroke) for stroke in shape], number, jitter, rng))
            labels.append(np.full(number, digit))
    segments = np.concatenate(pieces).astype(np.float32)
    ends = segments.reshape(len(segments), -1, 2)
    widths = (np.ptp(ends, axis=1).max(axis=1) * rng.uniform(*PENS, len(segments))).astype(np.float32)
    return Drawings(
        torch.from_numpy(segments),
        torch.from_numpy(widths),
        torch.from_numpy(np.concatenate(labels)),
    )


def _points(stroke: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a stroke's points ``[points, 2]``, and which of them are corners."""
    words = stroke.split()
    kept = [i for i, word in enumerate(words) if i == 0 or word != words[i - 1]]
    points = np.array([[float(number) for number in words[i].split(",")] for i in kept]) / 100
    return points, np.array([words[i : i + 2].count(words[i]) == 2 for i in kept])


def _bent(
    strokes: list[tuple[np.ndarray, np.ndarray]], count: int, jitter: float, rng: np.random.Generator
) -> np.ndarray:
    """Return drawings of one shape, ``[count, SEGMENTS, 4]``."""
    lengths = np.array([np.linalg.norm(np.diff(points, axis=0), axis=1).sum() for points, _ in strokes])
    shares = np.maximum(1, (SEGMENTS - len(strokes)) * lengths / lengths.sum()).astype(int)
    shares[lengths.argmax()] += SEGMENTS - shares.sum()
    hand = _Hand(count, rng)
    pieces = []
    for (points, corners), share in zip(strokes, shares, strict=True):
        place = rng.normal(0, 0.02, (count, 1, 2)) * (len(strokes) > 1)
        shaky = jitter * np.exp(rng.normal(-0.3, 0.5, (count, 1, 1)))
        moved = points + rng.normal(size=(count, *points.shape)) * shaky + place
        ruled = (rng.random(count) < _RULED)[:, None, None]
        path = np.where(ruled, _curve(moved, np.full(len(points), True), share), _curve(moved, corners, share))
        path = hand.write(path - 0.5)
        pieces.append(np.concatenate([path[:, :-1], path[:, 1:]], axis=-1))
    return np.concatenate(pieces, axis=1)


class _Hand:
    """What all strokes of a drawing have in common: width, slant, turn, and a slow bend of the whole.

    Args:
        count: How many drawings.
        rng: Draws them.
    """

    def __init__(self, count: int, rng: np.random.Generator) -> None:
        self.width = np.exp(rng.normal(-0.35, 0.25, (count, 1)))
        self.slant = rng.uniform(-0.15, 0.4, (count, 1))
        self.turn = np.radians(rng.normal(0, 6, (count, 1)))
        self.bend = rng.normal(0, 0.03, (2, count, 1, 2))
        self.phase = rng.uniform(0, 2 * np.pi, (2, count, 1, 2))

    def write(self, path: np.ndarray) -> np.ndarray:
        """Return a stroke, ``[count, points, 2]`` around 0, as this hand writes it."""
        for waves, (bend, phase) in enumerate(zip(self.bend, self.phase, strict=True), start=1):
            path = path + bend * np.sin(np.pi * waves * path[..., ::-1] + phase)
        x, y = path[..., 0] * self.width, path[..., 1]
        x = x - self.slant * y
        cosine, sine = np.cos(self.turn), np.sin(self.turn)
        return np.stack([cosine * x - sine * y, sine * x + cosine * y], axis=-1)


def _curve(points: np.ndarray, corners: np.ndarray, pieces: int) -> np.ndarray:
    """Return Catmull and Rom's curve through points ``[count, points, 2]``, straight into corners, in some pieces."""
    slopes = np.empty_like(points)
    slopes[:, 1:-1] = (points[:, 2:] - points[:, :-2]) / 2
    slopes[:, 0], slopes[:, -1] = points[:, 1] - points[:, 0], points[:, -1] - points[:, -2]
    place = np.linspace(0, points.shape[1] - 1, pieces + 1)
    i = np.minimum(place.astype(int), points.shape[1] - 2)
    t = (place - i)[:, None]
    a, b = points[:, i], points[:, i + 1]
    at_a = np.where(corners[i][:, None], b - a, slopes[:, i])
    at_b = np.where(corners[i + 1][:, None], b - a, slopes[:, i + 1])
    return (
        (2 * t**3 - 3 * t**2 + 1) * a + (t**3 - 2 * t**2 + t) * at_a + (3 * t**2 - 2 * t**3) * b + (t**3 - t**2) * at_b
    )


def levels(drawings: Drawings) -> Tensor:
    """Return drawings as `digitsPixels` of drawing.js makes them.

    Args:
        drawings: The drawings.

    Returns:
        Levels from 0 to 16, ``[drawings, 1, 8, 8]``, uint8.
    """
    return _in_chunks(drawings, _levels)


def pixels(drawings: Drawings) -> Tensor:
    """Return drawings as `mnistPixels` of drawing.js makes them.

    Args:
        drawings: The drawings.

    Returns:
        Grey from 0 to 255, ``[drawings, 1, 28, 28]``, uint8.
    """
    return _in_chunks(drawings, _pixels)


def _in_chunks(drawings: Drawings, render: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Render some drawings at a time."""
    pairs = zip(drawings.segments.split(_CHUNK), drawings.widths.split(_CHUNK), strict=True)
    return torch.cat([render(segments, widths) for segments, widths in pairs]).unsqueeze(1)


def _levels(segments: Tensor, widths: Tensor) -> Tensor:
    least, most = _box(segments, widths)
    cell_height = (most - least)[:, 1] / 8
    cell_width = torch.maximum(cell_height, (most - least)[:, 0] / 6)
    left = (least[:, 0] + most[:, 0]) / 2 - 4 * cell_width
    corner, cell = torch.stack([left, least[:, 1]], 1), torch.stack([cell_width, cell_height], 1)
    return (16 * _cell_means(segments, widths, corner, cell, 8, 5)).round().to(torch.uint8)


def _pixels(segments: Tensor, widths: Tensor) -> Tensor:
    least, most = _box(segments, widths)
    cell = ((most - least).amax(1, keepdim=True) / 20).expand(-1, 2)
    coarse = _cell_means(segments, widths, least, 20 / 16 * cell, 16, 2)
    middles = torch.arange(16) + 0.5
    mass = coarse.sum((1, 2))
    x, y = ((coarse.sum(axis) * middles).sum(1) / mass for axis in (1, 2))
    centre = least + torch.stack([x, y], 1) * 20 / 16 * cell
    return (255 * _cell_means(segments, widths, centre - 14 * cell, cell, 28, 3)).round().to(torch.uint8)


def _box(segments: Tensor, widths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the corners of the smallest rectangles with all ink, ``[drawings, 2]`` each."""
    ends = segments.unflatten(2, (2, 2)).flatten(1, 2)
    return ends.amin(1) - widths[:, None] / 2, ends.amax(1) + widths[:, None] / 2


def _cell_means(segments: Tensor, widths: Tensor, corner: Tensor, cell: Tensor, cells: int, parts: int) -> Tensor:
    """Return the mean ink of each cell of a grid, ``[drawings, cells, cells]``, from ``parts`` x ``parts`` points."""
    steps = (torch.arange(cells * parts) + 0.5) / parts
    x = (corner[:, :1] + cell[:, :1] * steps)[:, None, :]
    y = (corner[:, 1:] + cell[:, 1:] * steps)[:, :, None]
    nearest = torch.full((len(segments), cells * parts, cells * parts), torch.inf)
    for piece in segments.unbind(1):
        x1, y1, x2, y2 = (value[:, None, None] for value in piece.unbind(1))
        across, down = x2 - x1, y2 - y1
        along = ((x - x1) * across + (y - y1) * down) / (across**2 + down**2).clamp(min=1e-12)
        along = along.clamp(0, 1)
        nearest = torch.minimum(nearest, (x - x1 - along * across) ** 2 + (y - y1 - along * down) ** 2)
    edge = cell[:, 1, None, None] / parts  # within a point's distance of the edge, ink is grey
    ink = ((widths[:, None, None] / 2 - nearest.sqrt()) / edge + 0.5).clamp(0, 1)
    return ink.unflatten(2, (cells, parts)).unflatten(1, (cells, parts)).mean((2, 4))
