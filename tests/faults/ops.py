"""Faults that plant_faults.py plants in fairseq_resid/ops."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "sas: the gate sees x instead of F",
        "fairseq_resid/ops/gates.py",
        "hidden = torch.addmm(hidden, f.reshape(-1, channels), f_weight.t())",
        "hidden = torch.addmm(hidden, x.reshape(-1, channels), f_weight.t())",
        "connections/test_connections.py",
    ),
    Fault(
        "kernel: the last norm adds no gradient to x",
        "fairseq_resid/ops/kernels.py",
        "        g = norm_backward(g * w1, u1, tl.load(stats + 1), C)\n        dx += g",
        "        g = norm_backward(g * w1, u1, tl.load(stats + 1), C)",
        "ops/test_kernels.py",
    ),
    Fault(
        "kernel: the norm's derivative lacks its second mean",
        "fairseq_resid/ops/kernels.py",
        "rstd * (q - sum_q / C - u * (sum_qu / C))",
        "rstd * (q - sum_q / C)",
        "ops/test_kernels.py",
    ),
    Fault(
        "kernel: dF is not masked by dropout",
        "fairseq_resid/ops/kernels.py",
        "df = tl.where(survives(seed, row, cols, threshold), df, 0.0)\n"
        "        tl.store(df_ptr + offsets, df.to(df_ptr.dtype.element_ty), mask=inside)\n    sums =",
        "df = df\n        tl.store(df_ptr + offsets, df.to(df_ptr.dtype.element_ty), mask=inside)\n    sums =",
        "ops/test_kernels.py",
    ),
    Fault(
        "kernel: the gradient of a vector λ sees λ ⊙ x instead of x",
        "fairseq_resid/ops/kernels.py",
        "dx_weight += dx * x_row",
        "dx_weight += dx * x",
        "ops/test_kernels.py",
    ),
    Fault(
        "kernel: x + LN(F) adds x before the norm too",
        "fairseq_resid/ops/kernels.py",
        "mean = tl.sum(y, axis=0) / C\n        y = x +",
        "y += x\n        mean = tl.sum(y, axis=0) / C\n        y = x +",
        "ops/test_kernels.py",
    ),
    Fault(
        "self-check: kernels of other structures that spill registers count",
        "fairseq_resid/ops/fused.py",
        "            yield used",
        "            yield known",
        "ops/test_kernel_dispatch.py",
    ),
    Fault(
        "kernel: a row is summed in fp64",
        "fairseq_resid/ops/kernels.py",
        "tl.sum(centred * centred, axis=0) / C + eps",
        "(tl.sum(centred.to(tl.float64) * centred, axis=0) / C).to(tl.float32) + eps",
        "ops/test_kernel_budget.py",
    ),
    Fault(
        "kernel: the compiler does not know that x is aligned",
        "fairseq_resid/ops/kernels.py",
        '@triton.jit(do_not_specialize=["x_scale", "f_scale", "seed", "threshold", "rows"])',
        '@triton.jit(do_not_specialize=["x_ptr", "x_scale", "f_scale", "seed", "threshold", "rows"])',
        "ops/test_kernel_budget.py",
    ),
    Fault(
        "kernel: the launch fills half of the multiprocessors",
        "fairseq_resid/ops/occupancy.py",
        "rows_each = max(-(-rows // at_once)",
        "rows_each = max(-(-2 * rows // at_once)",
        "ops/test_occupancy.py",
    ),
]
