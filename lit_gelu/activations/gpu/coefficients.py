"""The polynomial that the kernels compute the normal distribution's tail with.

``Phi(-t) = 2**q(t)`` for ``t >= 0``. ``q`` is the minimax polynomial of degree 9 on [0, 13.2] for the relative error of
``2**q``, 4.7e-5 in float32 arithmetic, with ``q(0) = -1`` held: a tenth of bfloat16's and a third of float16's unit
roundoff at the most. 13.2 is where ``x Phi(x)`` leaves bfloat16's normal numbers.
"""

#: Coefficients of ``t**0`` to ``t**9``.
TAIL = (
    -1.0,
    -1.151094913482666,
    -0.458644837141037,
    -0.05404863506555557,
    0.008699270896613598,
    -0.0010277180699631572,
    8.451411122223362e-05,
    -4.5304013838176616e-06,
    1.413608572420344e-07,
    -1.9395069994487812e-09,
)

#: ``t`` is cut off here; what ``x Phi(x)`` is there no 16-bit number is small enough for.
TAIL_END = 14.2

#: As `TAIL`, to within 3.3e-7 of the probability itself, on [0, 5]: for gates that are drawn with 16 bits.
COARSE_TAIL = (
    -1.0,
    -1.151091355231113,
    -0.45925468231708305,
    -0.052561237293792945,
    0.0073975105389937346,
    -0.0005204584806908219,
)
COARSE_TAIL_END = 5.0

#: ``log2(m)`` for m from 1 to 2, to within 8.8e-5: Triton's own logarithm takes twenty operations.
LOGARITHM = (-2.51285457611084, 4.0700907707214355, -2.1206748485565186, 0.6451422572135925, -0.08161579072475433)
