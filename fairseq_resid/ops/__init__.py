"""The mathematics of the residual structures as functions on tensors. Needs torch alone.

The eager reference is in gates.py, recursive.py and sas.py; fused.py computes the same with one Triton kernel each way
(kernels.py); dispatch.py decides between them.
"""

from .dispatch import BACKENDS, absence, use_kernels
from .fused import dropout_mask, fused_recursive_layer_norm, fused_self_adaptive_scaling
from .gates import dense_gate, scaling_gate, single_layer_gate
from .recursive import recursive_layer_norm
from .sas import self_adaptive_scaling
from .sinkhorn import sinkhorn

__all__ = [
    "BACKENDS",
    "absence",
    "dense_gate",
    "dropout_mask",
    "fused_recursive_layer_norm",
    "fused_self_adaptive_scaling",
    "recursive_layer_norm",
    "scaling_gate",
    "self_adaptive_scaling",
    "single_layer_gate",
    "sinkhorn",
    "use_kernels",
]
