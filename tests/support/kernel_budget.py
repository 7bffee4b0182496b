"""Compile the kernels as a launch would, for GPUs that need not be present, and check the resources of each kernel.

    TRITON_INTERPRET=0 python tests/support/kernel_budget.py [sm_90 ...] [--quick] [--update]

The functions of `ops` run on a driver that launches nothing, so that constants, alignment hints and types are those of
real launches. No kernel may spill registers or compute in fp64. Each row must be read and written only once, 16 bytes
at a time where C allows it. Enough warps must fit on a multiprocessor. Registers, barriers in the loop over rows and
resident warps are compared with kernel_budget.txt, which --update writes. The table is printed if anything is wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fairseq_resid.ops import fused, occupancy
from support import fake_driver

TABLE = Path(__file__).with_suffix(".txt")
WARPS = 8  # the minimum that must fit on a multiprocessor
VECTOR = 16  # bytes of a vectorised global access
NARROWEST = 256  # with at least this many channels, every row is accessed in such vectors
ROWS = {f"{name}_ptr" for name in ("x", "f", "h", "g", "y", "dx", "df", "dh", "out")}
SHARED = {"sm_80": 164 << 10, "sm_90": 228 << 10, "sm_100": 228 << 10}
COMPILED_ONLY = ("sm_75", "gfx942")
TARGETS = (*SHARED, *COMPILED_ONLY)
HALF, BRAIN, FULL = torch.float16, torch.bfloat16, torch.float32
# Types of x, F and the parameters. Under autocast the shortcut is fp32.
TYPES = {"bf16": (BRAIN,) * 3, "fp16": (HALF,) * 3, "fp32": (FULL,) * 3, "amp": (FULL, BRAIN, FULL)}
SAS, WEIGHTED, OUTSIDE = "sas", "weighted", "outside"  # instead of a number of norms: sas, LN(λ ⊙ x + F), x + LN(F)
Form = int | str
Case = tuple[str, int, Form, float, bool]  # types, C, number of norms or another form, dropout, whether it trains


def cases(target: str, quick: bool) -> Iterator[Case]:
    """Yield the cases to compile for a target: all for sm_90, otherwise those that need the most resources."""
    if quick:
        yield from (("bf16", 512, form, 0.1, True) for form in (2, OUTSIDE, SAS))
        return
    if target in COMPILED_ONLY:
        yield from (("fp16", c, form, 0.1, True) for c, form in product((512, 2048), (1, 4, WEIGHTED, OUTSIDE, SAS)))
        return
    widths = (64, 256, 512, 1024, 2048) if target == "sm_90" else (512, 1024, 2048)
    yield from (("bf16", c, form, 0.1, True) for c, form in product(widths, (1, 2, 3, 4, WEIGHTED, OUTSIDE, SAS)))
    for types, c, form in product(("fp16", "fp32", "amp"), (512, 2048), (2, 4, WEIGHTED, OUTSIDE, SAS)):
        if target == "sm_90" or c == 2048:
            yield types, c, form, 0.1, True
    if target == "sm_90":
        yield from (("bf16", 512, form, 0.0, trains) for form, trains in product((2, SAS), (True, False)))


def run(types: str, c: int, form: Form, p: float, trains: bool) -> None:
    """Run the forward pass of a structure and, if it trains, the backward pass."""
    x_type, f_type, own = TYPES[types]

    def zeros(*shape: int, dtype: torch.dtype = own) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, requires_grad=trains)

    x, f = zeros(6, c, dtype=x_type), zeros(6, c, dtype=f_type)
    with torch.autocast("cpu", BRAIN, enabled=types == "amp"):
        if form == SAS:
            gates = zeros(2 * c, 2 * c), zeros(2 * c), zeros(2, c), zeros(2)
            y = fused.fused_self_adaptive_scaling(x, f, *gates, zeros(c), zeros(c), 1e-5, p, seed=3)
        elif form == OUTSIDE:
            y = fused.fused_branch_layer_norm(x, f, zeros(c), zeros(c), 1e-5, p, seed=3)
        else:
            pairs = [[zeros(c) for _ in range(1 if form == WEIGHTED else int(form))] for _ in range(2)]
            y = fused.fused_recursive_layer_norm(x, f, *pairs, 1e-5, p, zeros(c) if form == WEIGHTED else 1.0, seed=3)
    if trains:
        y.backward(torch.zeros_like(y))


@dataclass(frozen=True)
class Code:
    """The parts of a kernel's PTX that the budget needs."""

    lines: list[str]

    def barriers(self) -> int:
        """Return the number of barriers in loops, or in the whole kernel if it has no loop."""
        labels = {line.split(":")[0]: at for at, line in enumerate(self.lines) if re.match(r"\$\w+:", line)}
        loops = [
            range(labels[jump[1]], at)
            for at, line in enumerate(self.lines)
            if (jump := re.search(r"\bbra(?:\.uni)?\s+(\$\w+);", line)) and labels[jump[1]] < at
        ]
        found = [at for at, line in enumerate(self.lines) if re.search(r"\bbar\.sync\b", line)]
        return sum(not loops or any(at in loop for loop in loops) for at in found)

    def accesses(self, pointers: list[str]) -> dict[str, list[int]]:
        """Return, for each pointer argument, the number of bytes of every access of a thread to its tensor."""
        owners: dict[str, str] = {}
        found: dict[str, list[int]] = {}
        for line in self.lines:
            if access := re.search(r"\b(?:ld|st)\.global\S*?(?:\.v(\d))?\.[bu](\d+)\s.*\[\s*(%rd\d+)", line):
                if access[3] in owners:
                    size = int(access[1] or 1) * int(access[2]) // 8
                    found.setdefault(owners[access[3]], []).append(size)
            elif argument := re.search(r"ld\.param\S*\s+(%rd\d+), \[\w+_param_(\d+)\]", line):
                owners[argument[1]] = pointers[int(argument[2])]
            elif registers := re.findall(r"%rd\d+", line):
                owner = next((owners[register] for register in registers[1:] if register in owners), None)
                if owner:
                    owners[registers[0]] = owner
        return found


@dataclass(frozen=True)
class Use:
    """The resources that a compiled kernel uses; `key` and the four numbers form a row of the table."""

    key: str
    registers: int
    barriers: int
    warps: int
    bytes_per_element: float
    spills: int
    needed_bytes: int
    faults: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"{self.key:54} {self.registers:9} {self.barriers:8} {self.warps:5} {self.bytes_per_element:13g}"


def use(target: str, case: Case, one: Any) -> Use:
    """Read a compiled kernel's resource use from its code."""
    types, c, _, p, trains = case
    form = f" λ={one.options['NORMS']}" if "NORMS" in one.options else ""
    form += "".join(f" {name}" for name in (WEIGHTED, OUTSIDE) if one.options.get(name.upper()))
    more = f"{'' if p else ' p=0'}{'' if trains else ' decoding'}"
    compiled, ptx = one.compiled, one.compiled.asm["ptx"]
    pointers = [name for name, kind in compiled.src.signature.items() if kind != "constexpr"]
    rows = {name: sizes for name, sizes in Code(ptx.splitlines()).accesses(pointers).items() if name in ROWS}
    each = one.options["BLOCK"] // (32 * one.options["num_warps"])  # channels per thread
    moved = sum(map(sum, rows.values())) / each
    sizes = {name: int(compiled.src.signature[name][-2:]) // 8 for name in pointers if name in ROWS}
    needed = sum(size * (2 if name in ("h_ptr", "dh_ptr") else 1) for name, size in sizes.items())
    warps = one.at_once * one.options["num_warps"]
    narrow = min(min(widths) for widths in rows.values())
    faults = {
        f"spills {4 * one.spills} bytes": one.spills > 0,
        f"fewer than {WARPS} warps fit": warps < WARPS,
        "computes in fp64": ".f64" in ptx,
        f"accesses {narrow} bytes of a row at once, not {VECTOR}": c >= NARROWEST and narrow < VECTOR,
        f"moves {moved:g} bytes for each element, not {needed}": c >= NARROWEST and moved != needed,
    }
    key = f"{target:7} {one.name:15} {types:5} C={c:<5}{form}{more}"
    wrong = tuple(text for text, is_so in faults.items() if is_so)
    barriers = Code(ptx.splitlines()).barriers()
    return Use(key, compiled.n_regs, barriers, warps, moved, one.spills, needed, wrong)


def compile_for(target: str, quick: bool) -> list[Use]:
    """Compile all cases for a target; return the resource use of the kernels, or nothing for COMPILED_ONLY targets."""
    if target.startswith("sm_"):
        fake_driver.install("cuda", int(target[3:]))
    else:
        fake_driver.install("hip", target)
    limits = occupancy.Limits(1, shared=SHARED.get(target, 64 << 10))
    occupancy.limits = lambda _: limits  # type: ignore[assignment]
    fused._compiled.clear()
    found, seen = [], 0
    for case in cases(target, quick):
        run(*case)
        new = list(fused._compiled.values())[seen:]
        seen += len(new)
        found += [use(target, case, one) for one in new if target not in COMPILED_ONLY]
    print(f"{target}: {seen} kernels", flush=True)
    return found


HEAD = f"{'target, kernel, types, C, form':54} registers barriers warps bytes/element"


def read() -> dict[str, list[str]]:
    """Return the numbers of the table by key; empty if another version of Triton wrote it."""
    head, _, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    if head != f"Triton {triton.__version__}":
        return {}
    return {line[:54].strip(): line[54:].split() for line in lines}


def worse(found: Use, known: dict[str, list[str]]) -> list[str]:
    """Return a description of how a kernel exceeds the limits in its row of the table."""
    if not known:
        return []
    if found.key.strip() not in known:
        return ["is not in the table"]
    registers, barriers, warps = map(int, known[found.key.strip()][:3])
    checks = {
        f"more than {registers} registers": found.registers > registers,
        f"more than {barriers} barriers": found.barriers > barriers,
        f"fewer than {warps} warps fit": found.warps < warps,
    }
    return [text for text, is_so in checks.items() if is_so]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {' '.join(TARGETS)}")
    parser.add_argument("--quick", action="store_true", help="C = 512 in bf16: λ = 2, x + LN(F) and sas")
    parser.add_argument("--update", action="store_true", help=f"write {TABLE.name}; needs all targets")
    args = parser.parse_args()
    uses = [one for target in args.targets or TARGETS for one in compile_for(target, args.quick)]
    if args.update:
        TABLE.write_text("\n".join([f"Triton {triton.__version__}", HEAD, *(one.line for one in uses), ""]))
    known = read()
    wrong = {one.key: [*one.faults, *worse(one, known)] for one in uses}
    if any(wrong.values()):
        print(HEAD, *(one.line for one in uses), sep="\n")
        for key, faults in wrong.items():
            print(*(f"{key}: {fault}" for fault in faults), sep="\n", end="\n" if faults else "")
        sys.exit("kernel_budget.py: error: over the budget; if this is intended: kernel_budget.py --update")


if __name__ == "__main__":
    main()
