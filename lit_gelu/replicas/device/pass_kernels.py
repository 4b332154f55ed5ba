"""The kernel of a whole pass of a small net: every layer, the loss, and gradients by all pre-activations.

What the layers need lies in a table of ``FIELDS`` numbers of 64 bits each, addresses among them, and one row more for
the output layer; `lit_gelu.replicas.device.pass_steps` fills it. A program writes a layer's outputs to memory and reads
them for the next product: only itself needs them, so all that it waits for are its own threads.
"""

import triton
import triton.language as tl

from lit_gelu.replicas.device.layer_end_kernels import activated, factors, slope
from lit_gelu.replicas.device.net_kernels import drawn, products, softmax

FIELDS = tl.constexpr(16)
INPUTS = tl.constexpr(0)
WEIGHTS = tl.constexpr(1)
BIASES = tl.constexpr(2)
KEPT = tl.constexpr(3)
OUTPUTS = tl.constexpr(4)
GRADIENTS = tl.constexpr(5)
SEEDS = tl.constexpr(6)
STEPS = tl.constexpr(7)
HIGHEST = tl.constexpr(8)
SCALES = tl.constexpr(9)
FEATURES = tl.constexpr(10)
WIDTH = tl.constexpr(11)
SITE = tl.constexpr(12)
DROPS = tl.constexpr(13)
KINDS = tl.constexpr(14)
ALPHAS = tl.constexpr(15)


@triton.jit
def _floats(row_ptr, field: tl.constexpr):
    """Return an address of float32, which are read by vectors."""
    return tl.multiple_of(tl.load(row_ptr + field).to(tl.pointer_type(tl.float32)), 16)


@triton.jit
def _size(row_ptr, field: tl.constexpr):
    """Return a size that is a multiple of 16."""
    return tl.multiple_of(tl.load(row_ptr + field).to(tl.int32), 16)


@triton.jit
def _activation(row_ptr, replica):
    """Return the number and the parameter of a replica's activation."""
    kind = tl.load(tl.load(row_ptr + KINDS).to(tl.pointer_type(tl.int32)) + replica)
    return kind, tl.load(tl.load(row_ptr + ALPHAS).to(tl.pointer_type(tl.float32)) + replica)


@triton.jit
def _noise(row_ptr, replica, place, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Draw what a layer's dropout multiplies with."""
    seed = tl.load(tl.load(row_ptr + SEEDS).to(tl.pointer_type(tl.int64)) + replica)
    step = tl.load(tl.load(row_ptr + STEPS).to(tl.pointer_type(tl.int64)) + replica) + place
    highest = tl.load(tl.load(row_ptr + HIGHEST).to(tl.pointer_type(tl.int32)) + replica)
    scale = tl.load(tl.load(row_ptr + SCALES).to(tl.pointer_type(tl.float32)) + replica)
    site = tl.load(row_ptr + SITE).to(tl.int32)
    return factors(seed, step, highest, scale, site, 0, width, ROWS=ROWS, COLUMNS=COLUMNS)


@triton.jit(do_not_specialize=["ahead", "layers"])
def whole_pass(
    table_ptr, losses_ptr, labels_ptr, is_free_ptr, members_ptr, slots_ptr, rows_ptr, place_ptr, ahead, replicas, batch,
    layers, classes,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a pass through a net: program (0, 0, pass). Passes from slot ``replicas`` on end with the loss."""
    replica, slot = tl.load(members_ptr + tl.program_id(2)), tl.load(slots_ptr + tl.program_id(2)).to(tl.int64)
    place, wide = tl.load(place_ptr) + ahead, replica.to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_row, own, of_all = row < batch, slot * batch + row, drawn(rows_ptr, place, replica, replicas, row, batch)
    for layer in range(layers):
        at = table_ptr + layer * FIELDS
        features, width = _size(at, FEATURES), _size(at, WIDTH)
        u = products(
            _floats(at, INPUTS), tl.where(layer == 0, of_all, own), is_row,
            _floats(at, WEIGHTS) + wide * width * features, column, width, features, features, 1,
            ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, PRECISION=PRECISION,
        )  # fmt: skip
        u += tl.load(_floats(at, BIASES) + replica * width + column, mask=column < width, other=0.0)[None, :]
        here, inside = own[:, None] * width + column[None, :], is_row[:, None] & (column < width)[None, :]
        kind, alpha = _activation(at, replica)
        y = activated(u, kind, alpha)
        if slot < replicas:
            tl.store(_floats(at, KEPT) + here, u, mask=inside)
            if tl.load(at + DROPS) != 0:
                y *= _noise(at, replica, place, width, ROWS=ROWS, COLUMNS=COLUMNS)
        tl.store(_floats(at, OUTPUTS) + here, y, mask=inside)
        tl.debug_barrier()  # other threads have written what a thread reads next
    last = table_ptr + layers * FIELDS
    features, klass = _size(last, FEATURES), tl.arange(0, CLASSES)
    is_class = klass < classes
    logits = products(
        _floats(last, INPUTS), own, is_row, _floats(last, WEIGHTS) + wide * classes * features, klass, classes,
        features, features, 1, ROWS=ROWS, COLUMNS=CLASSES, DEPTH=DEPTH, PRECISION=PRECISION,
    )  # fmt: skip
    logits += tl.load(_floats(last, BIASES) + replica * classes + klass, mask=is_class, other=0.0)[None, :]
    is_label = klass[None, :] == tl.load(labels_ptr + of_all)[:, None]
    powers, sums, entropies = softmax(tl.where(is_class[None, :], logits, float("-inf")), is_label)
    if (slot >= replicas) == (tl.load(is_free_ptr + replica) != 0):
        tl.store(losses_ptr + place * replicas + replica, tl.sum(tl.where(is_row, entropies, 0.0), 0) / batch)
    if slot < replicas:
        by_logits = (powers / sums[:, None] - tl.where(is_label, 1.0, 0.0)) / batch
        places = own[:, None] * classes + klass[None, :]
        tl.store(_floats(last, GRADIENTS) + places, by_logits, mask=is_row[:, None] & is_class[None, :])
        for back in range(layers):
            tl.debug_barrier()
            at = table_ptr + (layers - 1 - back) * FIELDS
            width, following = _size(at, WIDTH), tl.load(at + FIELDS + WIDTH).to(tl.int32)
            d = products(
                _floats(at + FIELDS, GRADIENTS), own, is_row, _floats(at + FIELDS, WEIGHTS) + wide * following * width,
                column, width, following, 1, width, ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, PRECISION=PRECISION,
            )  # fmt: skip
            if tl.load(at + DROPS) != 0:
                d *= _noise(at, replica, place, width, ROWS=ROWS, COLUMNS=COLUMNS)
            here, inside = own[:, None] * width + column[None, :], is_row[:, None] & (column < width)[None, :]
            kind, alpha = _activation(at, replica)
            u = tl.load(_floats(at, KEPT) + here, mask=inside, other=0.0)
            tl.store(_floats(at, GRADIENTS) + here, d * slope(u, kind, alpha), mask=inside)
