"""What ``vpmaddubsw`` and the additions behind it make of uint8 times int8, transcribed from Intel's description.

Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, PMADDUBSW: unsigned bytes of the first operand
times signed bytes of the second; neighbouring 16-bit products are added "with signed saturation". ``vpmaddwd`` by ones
and ``vpaddd`` then add in 32 bits, where nothing overflows at these sizes.
"""

import numpy as np


def saturating_products(x, w, first=0):
    """``x [rows, summands]`` uint8 times ``w [channels, summands]`` int8, the first pair beginning at ``first``."""
    assert (x.dtype, w.dtype) == (np.uint8, np.int8)
    x, w = (np.pad(a.astype(np.int64), ((0, 0), (first, 0))) for a in (x, w))
    odd = x.shape[1] % 2
    x, w = (np.pad(a, ((0, 0), (0, odd))) for a in (x, w))
    products = x[:, None, :] * w[None, :, :]
    return np.clip(products[..., 0::2] + products[..., 1::2], -(2**15), 2**15 - 1).sum(-1)


def worst_inputs(w):
    """The inputs that make the sums of two largest: 255 where a channel's weights have one sign, 0 elsewhere."""
    return np.concatenate([np.where(w > 0, 255, 0), np.where(w < 0, 255, 0)]).astype(np.uint8)


def rows_by_hand(node, weight):
    """A layer's int8 weights as ``[channels, summands]``, the summands as a kernel reads its rows of inputs."""
    if node.op_type == "Conv":  # NHWC: place by place, at each place channel by channel
        return np.array([
            [one[(slice(None), *place)] for place in np.ndindex(one.shape[1:])] for one in weight
        ]).reshape(len(weight), -1)
    transposed = any(a.name == "transB" and a.i for a in node.attribute)
    return weight if transposed else weight.T
