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
        "compile: dropout is applied inside and outside the graph",
        "fairseq_resid/ops/compilation.py",
        "f_out if inside else site.dropout(f_out)",
        "site.dropout(f_out)",
        "connections/test_compiled.py",
    ),
]
