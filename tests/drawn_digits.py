"""224 drawings of digits as test data: polylines in a hand of their own, with jitter from a seeded generator.

The shapes are not those that the example trains on (`examples/web/shapes.py`), and are made in another way: straight
lines and arcs of ellipses.
"""

import math

import numpy as np
from web_pages import arc

SHAPES = {  # the name begins with the digit; then its strokes
    "0": [arc(0.5, 0.5, 0.2, 0.33, -80, 280, 14)],
    "0 begun on the right": [arc(0.5, 0.5, 0.26, 0.32, -30, -395, 14)],
    "0 narrow": [arc(0.5, 0.5, 0.14, 0.35, -100, 260, 14)],
    "1 stroke": [[(0.5, 0.14), (0.5, 0.5), (0.5, 0.86)]],
    "1 European": [[(0.32, 0.42), (0.57, 0.14), (0.57, 0.86)]],
    "1 with a foot": [[(0.38, 0.3), (0.53, 0.15), (0.53, 0.84)], [(0.35, 0.85), (0.72, 0.85)]],
    "2": [[*arc(0.48, 0.32, 0.2, 0.17, -170, 40, 9), (0.3, 0.84), (0.72, 0.84)]],
    "2 with a loop": [[*arc(0.5, 0.3, 0.18, 0.15, -160, 50, 8), (0.34, 0.74), (0.28, 0.84), (0.4, 0.78), (0.72, 0.86)]],
    "2 angular": [[(0.3, 0.2), (0.62, 0.16), (0.68, 0.36), (0.3, 0.85), (0.72, 0.85)]],
    "3 round": [[*arc(0.46, 0.32, 0.2, 0.17, -150, 80, 8), *arc(0.46, 0.67, 0.23, 0.19, -80, 150, 8)]],
    "3 flat top": [[(0.3, 0.16), (0.68, 0.16), (0.46, 0.43), *arc(0.46, 0.65, 0.22, 0.21, -80, 140, 8)]],
    "4 open": [[(0.34, 0.15), (0.3, 0.52), (0.7, 0.5)], [(0.64, 0.2), (0.62, 0.86)]],
    "4 closed": [[(0.6, 0.86), (0.6, 0.14), (0.27, 0.6), (0.76, 0.6)]],
    "4 closed in two strokes": [[(0.58, 0.14), (0.27, 0.6), (0.76, 0.6)], [(0.59, 0.16), (0.59, 0.86)]],
    "5 in one stroke": [[(0.68, 0.16), (0.38, 0.16), (0.35, 0.46), *arc(0.48, 0.64, 0.21, 0.2, -110, 140, 9)]],
    "5 in two strokes": [
        [(0.38, 0.17), (0.36, 0.45), *arc(0.47, 0.65, 0.2, 0.19, -100, 140, 9)],
        [(0.38, 0.16), (0.7, 0.15)],
    ],
    "6": [[(0.58, 0.14), (0.42, 0.36), (0.34, 0.6), *arc(0.5, 0.68, 0.17, 0.17, 180, -180, 12)]],
    "6 with a straight back": [[(0.6, 0.14), (0.36, 0.56), *arc(0.5, 0.67, 0.16, 0.18, 200, -170, 12)]],
    "7 clean": [[(0.28, 0.17), (0.72, 0.17), (0.46, 0.86)]],
    "7 clean in two strokes": [[(0.27, 0.17), (0.73, 0.17)], [(0.73, 0.17), (0.45, 0.86)]],
    "7 European with a bar": [[(0.28, 0.17), (0.72, 0.17), (0.46, 0.86)], [(0.4, 0.52), (0.74, 0.5)]],
    "7 with a hook": [[(0.28, 0.27), (0.3, 0.16), (0.72, 0.16), (0.5, 0.86)]],
    "8 in one stroke": [[*arc(0.5, 0.32, 0.16, 0.17, 90, 450, 12), *arc(0.5, 0.68, 0.19, 0.19, -90, 270, 12)]],
    "8 of two circles": [arc(0.5, 0.32, 0.16, 0.17, -90, 270, 12), arc(0.5, 0.67, 0.2, 0.19, -90, 270, 12)],
    "8 crossing": [
        [
            (0.66, 0.22),
            *arc(0.5, 0.3, 0.17, 0.15, -30, -230, 7),
            *arc(0.5, 0.69, 0.19, 0.17, -50, 220, 10),
            (0.66, 0.24),
        ]
    ],
    "9 straight": [[*arc(0.5, 0.34, 0.17, 0.19, -10, -370, 12), (0.67, 0.86)]],
    "9 curved": [[*arc(0.5, 0.34, 0.18, 0.18, 0, -360, 12), (0.68, 0.5), (0.62, 0.74), (0.42, 0.86)]],
    "9 leaning": [[*arc(0.5, 0.33, 0.17, 0.17, 10, -350, 12), (0.66, 0.42), (0.52, 0.86)]],
}
EACH = 8


def drawings():
    """Return (digit, name of the shape, strokes) of every drawing; strokes are points in [0, 1] x [0, 1]."""
    rng = np.random.default_rng(20240607)
    return [(int(name[0]), name, _by_hand(strokes, rng)) for name, strokes in SHAPES.items() for _ in range(EACH)]


def _by_hand(strokes, rng):
    """Return strokes as they come out of a hand: of another size, at another place, slanted, turned, trembling."""
    size, wide = rng.uniform(0.6, 1.15), rng.uniform(0.8, 1.2)
    slant, turn = rng.uniform(-0.1, 0.3), math.radians(rng.uniform(-8, 8))
    drawn = []
    for stroke in strokes:
        points = np.array(stroke) - 0.5 + rng.normal(0, 0.012, (len(stroke), 2)) + rng.normal(0, 0.008, 2)
        x, y = points[:, 0] * wide - slant * points[:, 1], points[:, 1]
        x, y = math.cos(turn) * x - math.sin(turn) * y, math.sin(turn) * x + math.cos(turn) * y
        drawn.append(size * np.stack([x, y], axis=1))
    every = np.concatenate(drawn)
    room = 0.46 - np.abs(every).max(axis=0)
    place = 0.5 + rng.uniform(-1, 1, 2) * np.clip(room, 0, 0.15)
    return [np.clip(stroke + place, 0.03, 0.97).tolist() for stroke in drawn]
