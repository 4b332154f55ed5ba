"""The kernels of a whole step of many small nets, see `lit_gelu.replicas.device.kernel_steps`.

A product's two matrices are read once into a program's registers; what follows it in the net is computed there: bias,
activation and dropout, their derivatives, the loss, or Adam. Products are of three of TF32 (``tf32x3``), whose sums
have about the digits of float32. The number of a step is that of the steps before this batch of the Trainer, which
``steps`` holds, and its place in the batch: the place of the first step that a CUDA graph makes, and how many the graph
makes ahead of this one.
"""

import triton
import triton.language as tl

from lit_gelu.replicas.device.adam_kernel import moved
from lit_gelu.replicas.device.layer_end_kernels import activated, factors, slope


@triton.jit
def _drawn(rows_ptr, place, replica, replicas, row, batch):
    """Return which of all samples a replica's batch has in this step."""
    table = rows_ptr + (place * replicas + replica) * batch
    return tl.load(table + row, mask=row < batch, other=0).to(tl.int64)


@triton.jit
def _products(
    a_ptr, sample, is_row, w_ptr, column, width, inner, step_of_column, step_of_inner,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a tile of rows of ``a`` with weights of a replica, which lie in memory by the two steps."""
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for first in range(0, inner, DEPTH):
        depth = first + tl.arange(0, DEPTH)
        a = tl.load(
            a_ptr + sample[:, None] * inner + depth[None, :], mask=is_row[:, None] & (depth < inner)[None, :], other=0.0
        )
        w = tl.load(
            w_ptr + column[None, :] * step_of_column + depth[:, None] * step_of_inner,
            mask=(column < width)[None, :] & (depth < inner)[:, None],
            other=0.0,
        )
        total = tl.dot(a, w, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["ahead", "site", "first_free", "free"])
def layer_forward(
    x_ptr, w_ptr, b_ptr, u_ptr, y_ptr, members_ptr, slots_ptr, rows_ptr, place_ptr, kinds_ptr, alphas_ptr,
    seeds_ptr, steps_ptr, highest_ptr, scales_ptr, ahead, replicas, batch, units, width, site, first_free, free,
    GATHERS: tl.constexpr, SHARED: tl.constexpr, KEEPS: tl.constexpr, SPLITS: tl.constexpr, DROPS: tl.constexpr,
    UNIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a hidden layer: program (block of columns, block of rows, pass).

    ``members`` says whose a pass is, ``slots`` where its inputs and outputs are. Slots from ``replicas`` on have no
    dropout and keep no pre-activations ``u``. With ``SPLITS`` these start here: of ``free`` replicas from
    ``first_free`` on, outputs without dropout are written, too.
    """
    features = units * UNIT  # so the compiler knows what they are a multiple of, and reads as many at once
    replica, slot = tl.load(members_ptr + tl.program_id(2)), tl.load(slots_ptr + tl.program_id(2)).to(tl.int64)
    first = tl.program_id(1) * ROWS
    row, column = first + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (row < batch)[:, None] & (column < width)[None, :]
    sample = slot * batch + row
    if GATHERS:
        sample = _drawn(rows_ptr, tl.load(place_ptr) + ahead, replica, replicas, row, batch)
    if SHARED:
        sample = row.to(tl.int64)
    weights = w_ptr + replica.to(tl.int64) * width * features
    u = _products(
        x_ptr, sample, row < batch, weights, column, width, features, features, 1,
        ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, PRECISION=PRECISION,
    )  # fmt: skip
    u += tl.load(b_ptr + replica * width + column, mask=column < width, other=0.0)[None, :]
    here = row[:, None] * width + column[None, :]
    if KEEPS:
        if slot < replicas:
            tl.store(u_ptr + slot * batch * width + here, u, mask=inside)
    y = activated(u, tl.load(kinds_ptr + replica), tl.load(alphas_ptr + replica))
    if SPLITS:
        if (replica >= first_free) & (replica < first_free + free):
            tl.store(y_ptr + (replicas + replica - first_free).to(tl.int64) * batch * width + here, y, mask=inside)
    if DROPS:
        scale = tl.load(scales_ptr + replica)
        if (slot < replicas) & (scale != 1.0):
            seed, step = tl.load(seeds_ptr + replica), tl.load(steps_ptr + replica) + tl.load(place_ptr) + ahead
            highest = tl.load(highest_ptr + replica)
            y *= factors(seed, step, highest, scale, site, first, width, ROWS=ROWS, COLUMNS=COLUMNS)
    tl.store(y_ptr + slot * batch * width + here, y, mask=inside)


@triton.jit
def _logits(
    y_ptr, sample, is_row, w_ptr, b_ptr, replica, width, classes,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the output layer of some samples; where there is no class it is minus infinity."""
    column = tl.arange(0, CLASSES)
    logits = _products(
        y_ptr, sample, is_row, w_ptr + replica.to(tl.int64) * classes * width, column, classes, width, width, 1,
        ROWS=ROWS, COLUMNS=CLASSES, DEPTH=DEPTH, PRECISION=PRECISION,
    )  # fmt: skip
    bias = tl.load(b_ptr + replica * classes + column, mask=column < classes, other=0.0)
    return tl.where((column < classes)[None, :], logits + bias[None, :], float("-inf"))


@triton.jit
def _softmax(logits, is_label):
    """Return powers, their sums, and cross-entropies."""
    shifted = logits - tl.max(logits, 1)[:, None]
    powers = tl.exp(shifted)
    sums = tl.sum(powers, 1)
    return powers, sums, tl.log(sums) - tl.sum(tl.where(is_label, shifted, 0.0), 1)


@triton.jit(do_not_specialize=["ahead"])
def output_layer(
    y_ptr, w_ptr, b_ptr, d_ptr, losses_ptr, labels_ptr, is_free_ptr, members_ptr, slots_ptr, rows_ptr, place_ptr,
    ahead, replicas, batch, width, classes,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the output layer, the mean cross-entropy that is logged, and its gradients by logits: program (pass)."""
    replica, slot = tl.load(members_ptr + tl.program_id(0)), tl.load(slots_ptr + tl.program_id(0)).to(tl.int64)
    column, place = tl.arange(0, CLASSES), tl.load(place_ptr) + ahead
    loss = tl.zeros([ROWS], dtype=tl.float32)
    for first in range(0, batch, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row < batch)[:, None] & (column < classes)[None, :]
        logits = _logits(
            y_ptr, slot * batch + row, row < batch, w_ptr, b_ptr, replica, width, classes,
            ROWS=ROWS, CLASSES=CLASSES, DEPTH=DEPTH, PRECISION=PRECISION,
        )  # fmt: skip
        label = tl.load(labels_ptr + _drawn(rows_ptr, place, replica, replicas, row, batch))
        is_label = column[None, :] == label[:, None]
        powers, sums, entropies = _softmax(logits, is_label)
        loss += tl.where(row < batch, entropies, 0.0)
        d = (powers / sums[:, None] - tl.where(is_label, 1.0, 0.0)) / batch
        if slot < replicas:
            tl.store(d_ptr + (slot * batch + row[:, None]) * classes + column[None, :], d, mask=inside)
    if (slot >= replicas) == (tl.load(is_free_ptr + replica) != 0):
        tl.store(losses_ptr + place * replicas + replica, tl.sum(loss, 0) / batch)


@triton.jit
def sample_values(
    y_ptr, w_ptr, b_ptr, losses_ptr, errors_ptr, labels_ptr, samples, width, classes,
    ROWS: tl.constexpr, CLASSES: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute each sample's cross-entropy, and whether its largest logit is another's: program (block, replica)."""
    row, replica = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    column, place = tl.arange(0, CLASSES), replica.to(tl.int64) * samples + row
    logits = _logits(
        y_ptr, place, row < samples, w_ptr, b_ptr, replica, width, classes,
        ROWS=ROWS, CLASSES=CLASSES, DEPTH=DEPTH, PRECISION=PRECISION,
    )  # fmt: skip
    label = tl.load(labels_ptr + row, mask=row < samples, other=0)
    _, _, entropies = _softmax(logits, column[None, :] == label[:, None])
    tl.store(losses_ptr + place, entropies, mask=row < samples)
    is_none = (logits != logits).to(tl.float32)  # where some are no numbers, torch.argmax takes the first of them
    ranked = tl.where(tl.max(is_none, 1)[:, None] > 0.0, is_none, logits)
    predicted = tl.min(tl.where(ranked == tl.max(ranked, 1)[:, None], column[None, :], CLASSES), 1)
    tl.store(errors_ptr + place, (predicted != label).to(tl.float32), mask=row < samples)


@triton.jit(do_not_specialize=["ahead", "site", "first_replica"])
def layer_backward(
    next_ptr, w_ptr, u_ptr, d_ptr, kinds_ptr, alphas_ptr, seeds_ptr, steps_ptr, highest_ptr, scales_ptr, place_ptr,
    ahead, first_replica, batch, width, following, site,
    DROPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute a hidden layer's gradients by pre-activations out of the next one's.

    Program (block of columns, block of rows, replica from the first on); ``following`` is the next layer's width.
    """
    replica = first_replica + tl.program_id(2)
    first = tl.program_id(1) * ROWS
    row, column = first + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sample = replica.to(tl.int64) * batch + row
    d = _products(
        next_ptr, sample, row < batch, w_ptr + replica.to(tl.int64) * following * width, column, width, following,
        1, width, ROWS=ROWS, COLUMNS=COLUMNS, DEPTH=DEPTH, PRECISION=PRECISION,
    )  # fmt: skip
    if DROPS:
        scale = tl.load(scales_ptr + replica)
        if scale != 1.0:
            seed, step = tl.load(seeds_ptr + replica), tl.load(steps_ptr + replica) + tl.load(place_ptr) + ahead
            highest = tl.load(highest_ptr + replica)
            d *= factors(seed, step, highest, scale, site, first, width, ROWS=ROWS, COLUMNS=COLUMNS)
    here = sample[:, None] * width + column[None, :]
    inside = (row < batch)[:, None] & (column < width)[None, :]
    u = tl.load(u_ptr + here, mask=inside, other=0.0)
    d *= slope(u, tl.load(kinds_ptr + replica), tl.load(alphas_ptr + replica))
    tl.store(d_ptr + here, d, mask=inside)


@triton.jit
def _read(p_ptr, m_ptr, v_ptr, offsets, inside):
    return (
        tl.load(p_ptr + offsets, mask=inside),
        tl.load(m_ptr + offsets, mask=inside),
        tl.load(v_ptr + offsets, mask=inside),
    )


@triton.jit
def _write(p_ptr, m_ptr, v_ptr, offsets, inside, p, m, v):
    tl.store(p_ptr + offsets, p, mask=inside)
    tl.store(m_ptr + offsets, m, mask=inside)
    tl.store(v_ptr + offsets, v, mask=inside)


@triton.jit(do_not_specialize=["ahead", "first_replica"])
def parameter_step(
    d_ptr, x_ptr, w_ptr, wm_ptr, wv_ptr, b_ptr, bm_ptr, bv_ptr, rows_ptr, place_ptr, sizes_ptr, roots_ptr, active_ptr,
    ahead, first_replica, replicas, batch, units, width, rest1, beta2, rest2, eps,
    GATHERS: tl.constexpr, UNIT: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a layer's weights and biases, and make Adam's step of them.

    Program (block of inputs, block of outputs, replica from the first on); a bias is the first block's. Who else reads
    these parameters in a step has done so before.
    """
    features = units * UNIT  # so the compiler knows what they are a multiple of, and reads as many at once
    replica, place = first_replica + tl.program_id(2), tl.load(place_ptr) + ahead
    output, column = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_output = output < width * tl.load(active_ptr + replica)  # of an inactive replica nothing is
    offsets = (replica.to(tl.int64) * width + output[:, None]) * features + column[None, :]
    inside = is_output[:, None] & (column < features)[None, :]
    if GATHERS:  # what memory takes to answer passes while the inputs are looked up
        p, m, v = _read(w_ptr, wm_ptr, wv_ptr, offsets, inside)
    gradient, of_bias = tl.zeros([ROWS, COLUMNS], dtype=tl.float32), tl.zeros([ROWS], dtype=tl.float32)
    for first in range(0, batch, DEPTH):
        row = first + tl.arange(0, DEPTH)
        d = tl.load(
            d_ptr + (replica.to(tl.int64) * batch + row[:, None]) * width + output[None, :],
            mask=(row < batch)[:, None] & (output < width)[None, :],
            other=0.0,
        )
        sample = replica.to(tl.int64) * batch + row
        if GATHERS:
            sample = _drawn(rows_ptr, place, replica, replicas, row, batch)
        x = tl.load(
            x_ptr + sample[:, None] * features + column[None, :],
            mask=(row < batch)[:, None] & (column < features)[None, :],
            other=0.0,
        )
        gradient = tl.dot(tl.trans(d), x, gradient, input_precision=PRECISION)
        of_bias += tl.sum(d, 0)
    if not GATHERS:
        p, m, v = _read(w_ptr, wm_ptr, wv_ptr, offsets, inside)
    size, root = tl.load(sizes_ptr + place * replicas + replica), tl.load(roots_ptr + place)
    p, m, v = moved(p, m, v, gradient, size, root, rest1, beta2, rest2, eps)
    _write(w_ptr, wm_ptr, wv_ptr, offsets, inside, p, m, v)
    if tl.program_id(0) == 0:
        places = replica * width + output
        b, first_moment, second_moment = _read(b_ptr, bm_ptr, bv_ptr, places, is_output)
        b, first_moment, second_moment = moved(
            b, first_moment, second_moment, of_bias, size, root, rest1, beta2, rest2, eps
        )
        _write(b_ptr, bm_ptr, bv_ptr, places, is_output, b, first_moment, second_moment)
