"""Compile every kernel to machine code for several GPU types, none of which needs to be present; print the number.

test_kernel_dispatch.py runs this in a separate process, in which Triton compiles instead of interpreting.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from fairseq_resid.ops import fused, kernels

AFFINE = [f"{letter}{k}_ptr" for k in range(1, fused.MAX_NORMS + 1) for letter in "wb"]
SCALARS = {
    **dict.fromkeys(["x_scale", "f_scale", "scale", "eps"], "fp32"),
    **dict.fromkeys(["seed", "threshold", "rows"], "i32"),
}
Target = tuple[int, str, str, int]  # capability, dtype of activations, dtype of parameters, C
TARGETS: list[tuple[Target, list[int]]] = [  # with the numbers of norms
    ((75, "fp16", "fp16", 512), [2]),
    ((80, "bf16", "bf16", 1000), [3]),
    ((80, "bf16", "fp32", 8192), [2]),
    ((90, "fp16", "fp32", 512), [1, 4]),
]


def compile_one(kernel: Any, target: Target, lanes: int, norms: int = 0, save: bool = True) -> None:
    capability, activations, parameters, channels = target
    types = {
        **SCALARS,
        **dict.fromkeys(["stats_ptr", "sums_ptr"], "*fp32"),
        **dict.fromkeys([*AFFINE, "v_ptr", "c_ptr", "w_ptr", "b_ptr"], f"*{parameters}"),
    }
    shape = dict(fused._shape(channels, lanes))
    options = {"num_warps": shape.pop("num_warps")}
    last = int(kernel is kernels.chain_backward)  # the backward kernel has no last bias
    fixed = {**shape, "NORMS": norms, "DROPOUT": save, "SAVE": save, **dict.fromkeys(AFFINE[2 * norms - last :])}
    if not save:
        fixed["stats_ptr"] = None
    names = kernel.arg_names
    constants = {name: value for name, value in fixed.items() if name in names}
    signature = {name: "constexpr" if name in constants else types.get(name, f"*{activations}") for name in names}
    if tuple(map(int, triton.__version__.split(".")[:2])) < (3, 2):  # arguments are numbered there
        signature = {names.index(name): kind for name, kind in signature.items() if kind != "constexpr"}
        constants = {names.index(name): value for name, value in constants.items()}
    made = triton.compile(
        ASTSource(kernel, signature, constants), target=GPUTarget("cuda", capability, 32), options=options
    )
    assert made.asm["cubin"]


def main() -> None:
    count = 0
    passes = [(kernels.chain_forward, fused.FORWARD_LANES), (kernels.chain_backward, fused.BACKWARD_LANES)]
    others = [
        (kernels.dropout, fused.FORWARD_LANES),
        (kernels.sas_forward, fused.FORWARD_LANES),
        (kernels.sas_backward, fused.BACKWARD_LANES),
    ]
    for target, chains in TARGETS:
        for norms, (kernel, lanes) in itertools.product(chains, passes):
            compile_one(kernel, target, lanes, norms)
            count += 1
        for kernel, lanes in others:
            compile_one(kernel, target, lanes)
            count += 1
    compile_one(kernels.chain_forward, target, fused.FORWARD_LANES, 2, save=False)
    compile_one(kernels.sas_forward, target, fused.FORWARD_LANES, save=False)
    print(count + 2)


if __name__ == "__main__":
    main()
