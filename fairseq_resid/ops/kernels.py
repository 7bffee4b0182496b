"""Triton kernels of the residual structures. Each makes one pass over memory, with statistics and sums in fp32.

This module needs triton, so fused.py imports it on first use. Names: u = (s - mean) · rstd is a standardised row, w and
b are the weight and bias of a norm, and g = dL/dy. A program keeps whole rows in registers, with BLOCK >= C lanes each;
lanes beyond C are zero and stay zero, because the weights loaded there are zero. A backward program processes every
P-th row, where P is the number of programs. It keeps its part of the parameters' gradients in registers and uses no
atomics, so that results do not depend on timing.

Every version of Triton from 3.1 to 3.9 must compile these kernels, so the parameters of each norm are separate
arguments instead of elements of a tuple or list.
"""

# No `from __future__ import annotations`: Triton 3.1's interpreter does not recognise "tl.constexpr" as a string.
import triton
import triton.language as tl

# One call of philox returns 4 words of 32 bits: the 16-bit random numbers of 8 neighbouring channels. The compiler
# merges the calls of the 8 neighbouring lanes of a thread into one.


@triton.jit
def survives(seed, row, cols, threshold):
    """Return a mask of the channels in a row that dropout keeps: those whose 16-bit random number is >= threshold."""
    group = cols >> 3
    zero = group * 0
    r0, r1, r2, r3 = tl.philox(seed, group, zero + row, zero, zero)
    word = (cols >> 1) & 3
    bits = tl.where(word < 2, tl.where(word == 0, r0, r1), tl.where(word == 2, r2, r3))
    return tl.where((cols & 1) == 0, bits & 0xFFFF, bits >> 16).to(tl.int32) >= threshold


@triton.jit
def load_row(pointer, offsets, inside):
    return tl.load(pointer + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def branch_row(f_ptr, offsets, inside, seed, row, cols, threshold, scale, DROPOUT: tl.constexpr):
    """Return a row of the scaled branch, scale · D ⊙ F."""
    f = load_row(f_ptr, offsets, inside) * scale
    if DROPOUT:
        f = tl.where(survives(seed, row, cols, threshold), f, 0.0)
    return f


@triton.jit
def norm_forward(
    s, mean, w_ptr, b_ptr, stats_ptr, place, cols, inside, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Return LN(s) of a row s with this mean; stats_ptr is unused without SAVE.

    The variance is computed in a second pass over registers, so that a large mean costs no precision.
    """
    centred = s - mean
    if BLOCK != C:
        centred = tl.where(inside, centred, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / C + eps)
    if SAVE:
        tl.store(stats_ptr + place, mean)
        tl.store(stats_ptr + place + 1, rstd)
    return centred * rstd * load_row(w_ptr, cols, inside) + load_row(b_ptr, cols, inside)


@triton.jit
def add_norm(
    x, y, w_ptr, b_ptr, stats_ptr, place, cols, inside, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    s = x + y
    return norm_forward(s, tl.sum(s, axis=0) / C, w_ptr, b_ptr, stats_ptr, place, cols, inside, eps, C, BLOCK, SAVE)


@triton.jit
def norm_again(s, stats_ptr, inside, C: tl.constexpr, BLOCK: tl.constexpr):
    """Recompute u of the forward pass from the saved mean and rstd."""
    u = (s - tl.load(stats_ptr)) * tl.load(stats_ptr + 1)
    if BLOCK != C:
        u = tl.where(inside, u, 0.0)
    return u


# A reduction costs three barriers, so values that are summed at the same place share one reduction.
@triton.jit
def add_2(a1, a2, b1, b2):
    return a1 + b1, a2 + b2


@triton.jit
def add_3(a1, a2, a3, b1, b2, b3):
    return a1 + b1, a2 + b2, a3 + b3


@triton.jit
def add_5(a1, a2, a3, a4, a5, b1, b2, b3, b4, b5):
    return a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5


@triton.jit
def norm_backward(q, u, rstd, C: tl.constexpr):
    """Return dL/ds from q = w ⊙ dL/dy:  rstd (q - mean q - u · mean(q ⊙ u))."""
    sum_q, sum_qu = tl.reduce((q, q * u), axis=0, combine_fn=add_2)
    return rstd * (q - sum_q / C - u * (sum_qu / C))


# --- recursive LayerNorm: y_1 = LN_1(λx + μF), y_k = LN_k(λx + y_{k-1}) ---------------------------------------------
#
# λ is a number or, with WEIGHTED, a vector with a gradient. With OUTSIDE, x is added after the only norm, which gives
# y = x + LN(μF) and dx = g. The backward pass then neither reads x nor writes dx.


@triton.jit(do_not_specialize=["x_scale", "f_scale", "eps", "seed", "threshold"])
def chain_forward(
    x_ptr, f_ptr, y_ptr, stats_ptr, x_weight_ptr,
    w1_ptr, b1_ptr, w2_ptr, b2_ptr, w3_ptr, b3_ptr, w4_ptr, b4_ptr,
    x_scale, f_scale, eps, seed, threshold,
    NORMS: tl.constexpr, WEIGHTED: tl.constexpr, OUTSIDE: tl.constexpr,
    C: tl.constexpr, BLOCK: tl.constexpr, DROPOUT: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Write a row of y and, with SAVE, the (mean, rstd) of every norm."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < C
    offsets = row.to(tl.int64) * C + cols
    scale = x_scale
    if WEIGHTED:
        scale = load_row(x_weight_ptr, cols, inside)
    x = load_row(x_ptr, offsets, inside) * scale
    y = branch_row(f_ptr, offsets, inside, seed, row, cols, threshold, f_scale, DROPOUT)
    place = row * (2 * NORMS)
    if OUTSIDE:
        mean = tl.sum(y, axis=0) / C
        y = x + norm_forward(y, mean, w1_ptr, b1_ptr, stats_ptr, place, cols, inside, eps, C, BLOCK, SAVE)
    else:
        y = add_norm(x, y, w1_ptr, b1_ptr, stats_ptr, place, cols, inside, eps, C, BLOCK, SAVE)
    if NORMS >= 2:
        y = add_norm(x, y, w2_ptr, b2_ptr, stats_ptr, place + 2, cols, inside, eps, C, BLOCK, SAVE)
    if NORMS >= 3:
        y = add_norm(x, y, w3_ptr, b3_ptr, stats_ptr, place + 4, cols, inside, eps, C, BLOCK, SAVE)
    if NORMS >= 4:
        y = add_norm(x, y, w4_ptr, b4_ptr, stats_ptr, place + 6, cols, inside, eps, C, BLOCK, SAVE)
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["x_scale", "f_scale", "seed", "threshold", "rows"])
def chain_backward(
    sums_ptr, g_ptr, x_ptr, f_ptr, stats_ptr, dx_ptr, df_ptr, x_weight_ptr,
    w1_ptr, b1_ptr, w2_ptr, b2_ptr, w3_ptr, b3_ptr, w4_ptr,
    x_scale, f_scale, seed, threshold, rows,
    NORMS: tl.constexpr, WEIGHTED: tl.constexpr, OUTSIDE: tl.constexpr,
    C: tl.constexpr, BLOCK: tl.constexpr, DROPOUT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write dx and dF of every P-th row, and the sums dw_1, db_1, dw_2, ... over these rows as (P, 2 NORMS, C).

    With WEIGHTED, dλ follows the other sums: (P, 2 NORMS + 1, C).
    """
    first = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < C
    dw1 = tl.zeros((BLOCK,), tl.float32)
    db1 = tl.zeros((BLOCK,), tl.float32)
    if NORMS >= 2:
        dw2 = tl.zeros((BLOCK,), tl.float32)
        db2 = tl.zeros((BLOCK,), tl.float32)
    if NORMS >= 3:
        dw3 = tl.zeros((BLOCK,), tl.float32)
        db3 = tl.zeros((BLOCK,), tl.float32)
    if NORMS >= 4:
        dw4 = tl.zeros((BLOCK,), tl.float32)
        db4 = tl.zeros((BLOCK,), tl.float32)
    if WEIGHTED:
        dx_weight = tl.zeros((BLOCK,), tl.float32)
    for step in tl.range(0, rows - first, tl.num_programs(0), num_stages=STAGES):
        row = first + step
        offsets = row.to(tl.int64) * C + cols
        if not OUTSIDE:
            scale = x_scale
            if WEIGHTED:
                scale = load_row(x_weight_ptr, cols, inside)
            x_row = load_row(x_ptr, offsets, inside)
            x = x_row * scale
        f = branch_row(f_ptr, offsets, inside, seed, row, cols, threshold, f_scale, DROPOUT)
        g = load_row(g_ptr, offsets, inside)
        stats = stats_ptr + row * (2 * NORMS)
        w1 = load_row(w1_ptr, cols, inside)
        u1 = norm_again(f if OUTSIDE else x + f, stats, inside, C, BLOCK)
        if NORMS >= 2:
            w2 = load_row(w2_ptr, cols, inside)
            u2 = norm_again(x + u1 * w1 + load_row(b1_ptr, cols, inside), stats + 2, inside, C, BLOCK)
        if NORMS >= 3:
            w3 = load_row(w3_ptr, cols, inside)
            u3 = norm_again(x + u2 * w2 + load_row(b2_ptr, cols, inside), stats + 4, inside, C, BLOCK)
        if NORMS >= 4:
            w4 = load_row(w4_ptr, cols, inside)
            u4 = norm_again(x + u3 * w3 + load_row(b3_ptr, cols, inside), stats + 6, inside, C, BLOCK)
        dx = tl.zeros((BLOCK,), tl.float32)
        if NORMS >= 4:
            dw4 += g * u4
            db4 += g
            g = norm_backward(g * w4, u4, tl.load(stats + 7), C)
            dx += g
        if NORMS >= 3:
            dw3 += g * u3
            db3 += g
            g = norm_backward(g * w3, u3, tl.load(stats + 5), C)
            dx += g
        if NORMS >= 2:
            dw2 += g * u2
            db2 += g
            g = norm_backward(g * w2, u2, tl.load(stats + 3), C)
            dx += g
        dw1 += g * u1
        db1 += g
        g = norm_backward(g * w1, u1, tl.load(stats + 1), C)
        dx += g
        if not OUTSIDE:
            tl.store(dx_ptr + offsets, (dx * scale).to(dx_ptr.dtype.element_ty), mask=inside)
        if WEIGHTED:
            dx_weight += dx * x_row
        df = g * f_scale
        if DROPOUT:
            df = tl.where(survives(seed, row, cols, threshold), df, 0.0)
        tl.store(df_ptr + offsets, df.to(df_ptr.dtype.element_ty), mask=inside)
    sums = sums_ptr + first.to(tl.int64) * ((2 * NORMS + WEIGHTED) * C) + cols
    tl.store(sums, dw1, mask=inside)
    tl.store(sums + C, db1, mask=inside)
    if NORMS >= 2:
        tl.store(sums + 2 * C, dw2, mask=inside)
        tl.store(sums + 3 * C, db2, mask=inside)
    if NORMS >= 3:
        tl.store(sums + 4 * C, dw3, mask=inside)
        tl.store(sums + 5 * C, db3, mask=inside)
    if NORMS >= 4:
        tl.store(sums + 6 * C, dw4, mask=inside)
        tl.store(sums + 7 * C, db4, mask=inside)
    if WEIGHTED:
        tl.store(sums + 2 * NORMS * C, dx_weight, mask=inside)


# --- dropout alone, for a GEMM that needs F: forward on f, backward on dL/dF ------------------------------------------


@triton.jit(do_not_specialize=["scale", "seed", "threshold"])
def dropout(
    f_ptr, out_ptr, scale, seed, threshold, C: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Write a row of scale · D ⊙ f; f and out may be the same tensor."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < C
    offsets = row.to(tl.int64) * C + cols
    kept = branch_row(f_ptr, offsets, inside, seed, row, cols, threshold, scale, True)
    tl.store(out_ptr + offsets, kept.to(out_ptr.dtype.element_ty), mask=inside)


# --- Self-Adaptive Scaling: y = αx + βF + (1-α)(1-β) LN(x + F), from the gates' hidden layer H = [H_α | H_β] --------


@triton.jit
def tanh(h):
    """Return tanh(h), which tl lacks, with an absolute error of about one fp32 epsilon. exp cannot overflow here."""
    e = tl.exp(-2.0 * tl.abs(h))
    t = (1.0 - e) / (1.0 + e)
    return tl.where(h < 0.0, -t, t)


@triton.jit(do_not_specialize=["eps"])
def sas_forward(
    x_ptr, f_ptr, h_ptr, y_ptr, stats_ptr, v_ptr, c_ptr, w_ptr, b_ptr, eps,
    C: tl.constexpr, BLOCK: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Write a row of y and, with SAVE, its mean, rstd, α and β; v (2, C) and c (2,) are the gates' output layer."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < C
    offsets = row.to(tl.int64) * C + cols
    hidden = h_ptr + row.to(tl.int64) * (2 * C)
    x = load_row(x_ptr, offsets, inside)
    f = load_row(f_ptr, offsets, inside)
    on_alpha = tanh(load_row(hidden, cols, inside)) * load_row(v_ptr, cols, inside)
    on_beta = tanh(load_row(hidden + C, cols, inside)) * load_row(v_ptr + C, cols, inside)
    s = x + f
    s_alpha, s_beta, sum_s = tl.reduce((on_alpha, on_beta, s), axis=0, combine_fn=add_3)
    alpha = tl.sigmoid(s_alpha + tl.load(c_ptr).to(tl.float32))
    beta = tl.sigmoid(s_beta + tl.load(c_ptr + 1).to(tl.float32))
    place = row * 4
    normed = norm_forward(s, sum_s / C, w_ptr, b_ptr, stats_ptr, place, cols, inside, eps, C, BLOCK, SAVE)
    if SAVE:
        tl.store(stats_ptr + place + 2, alpha)
        tl.store(stats_ptr + place + 3, beta)
    y = alpha * x + beta * f + (1.0 - alpha) * (1.0 - beta) * normed
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def sas_backward(
    sums_ptr, g_ptr, x_ptr, f_ptr, h_ptr, stats_ptr, dx_ptr, df_ptr, dh_ptr, v_ptr, w_ptr, b_ptr, rows,
    C: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Write dH of every P-th row, dx and dF without the part that comes through H, and sums over these rows.

    The sums are dw, db, dv_α, dv_β, ΣdH_α, ΣdH_β and dc, as (P, 6 C + 2).
    """
    first = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    inside = cols < C
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    dv_alpha = tl.zeros((BLOCK,), tl.float32)
    dv_beta = tl.zeros((BLOCK,), tl.float32)
    sum_alpha = tl.zeros((BLOCK,), tl.float32)
    sum_beta = tl.zeros((BLOCK,), tl.float32)
    dc_alpha = 0.0
    dc_beta = 0.0
    for step in tl.range(0, rows - first, tl.num_programs(0), num_stages=STAGES):
        row = first + step
        offsets = row.to(tl.int64) * C + cols
        hidden = row.to(tl.int64) * (2 * C) + cols
        x = load_row(x_ptr, offsets, inside)
        f = load_row(f_ptr, offsets, inside)
        g = load_row(g_ptr, offsets, inside)
        t_alpha = tanh(load_row(h_ptr, hidden, inside))
        t_beta = tanh(load_row(h_ptr, hidden + C, inside))
        stats = stats_ptr + row * 4
        rstd = tl.load(stats + 1)
        alpha = tl.load(stats + 2)
        beta = tl.load(stats + 3)
        u = norm_again(x + f, stats, inside, C, BLOCK)
        q = g * load_row(w_ptr, cols, inside)
        b = load_row(b_ptr, cols, inside)
        sum_q, sum_qu, sum_gb, on_x, on_f = tl.reduce((q, q * u, g * b, g * x, g * f), axis=0, combine_fn=add_5)
        on_norm = sum_qu + sum_gb
        logit_alpha = alpha * (1.0 - alpha) * (on_x - (1.0 - beta) * on_norm)
        logit_beta = beta * (1.0 - beta) * (on_f - (1.0 - alpha) * on_norm)
        dh_alpha = logit_alpha * load_row(v_ptr, cols, inside) * (1.0 - t_alpha * t_alpha)
        dh_beta = logit_beta * load_row(v_ptr + C, cols, inside) * (1.0 - t_beta * t_beta)
        gamma = (1.0 - alpha) * (1.0 - beta)
        dn = gamma * g
        dz = (gamma * rstd) * (q - sum_q / C - u * (sum_qu / C))
        tl.store(dx_ptr + offsets, (alpha * g + dz).to(dx_ptr.dtype.element_ty), mask=inside)
        tl.store(df_ptr + offsets, (beta * g + dz).to(df_ptr.dtype.element_ty), mask=inside)
        tl.store(dh_ptr + hidden, dh_alpha.to(dh_ptr.dtype.element_ty), mask=inside)
        tl.store(dh_ptr + hidden + C, dh_beta.to(dh_ptr.dtype.element_ty), mask=inside)
        dw += dn * u
        db += dn
        dv_alpha += logit_alpha * t_alpha
        dv_beta += logit_beta * t_beta
        sum_alpha += dh_alpha
        sum_beta += dh_beta
        dc_alpha += logit_alpha
        dc_beta += logit_beta
    sums = sums_ptr + first.to(tl.int64) * (6 * C + 2)
    tl.store(sums + cols, dw, mask=inside)
    tl.store(sums + C + cols, db, mask=inside)
    tl.store(sums + 2 * C + cols, dv_alpha, mask=inside)
    tl.store(sums + 3 * C + cols, dv_beta, mask=inside)
    tl.store(sums + 4 * C + cols, sum_alpha, mask=inside)
    tl.store(sums + 5 * C + cols, sum_beta, mask=inside)
    tl.store(sums + 6 * C, dc_alpha)
    tl.store(sums + 6 * C + 1, dc_beta)
