"""The formulas that structures share or compute with kernels, as functions on tensors; only torch is required.

gates.py, recursive.py and sas.py contain the eager reference; fused.py computes the same functions with one Triton
kernel per pass (kernels.py); dispatch.py selects one of the two. sinkhorn.py and cross_entropy.py, the loss of
translation models, are pure torch.
"""

from .cross_entropy import chunked_label_smoothed_cross_entropy
from .dispatch import BACKENDS, absence, use_kernels
from .fused import dropout_mask, fused_branch_layer_norm, fused_recursive_layer_norm, fused_self_adaptive_scaling
from .gates import dense_gate, scaling_gate, single_layer_gate
from .recursive import recursive_layer_norm
from .sas import self_adaptive_scaling
from .sinkhorn import sinkhorn

__all__ = [
    "BACKENDS",
    "absence",
    "chunked_label_smoothed_cross_entropy",
    "dense_gate",
    "dropout_mask",
    "fused_branch_layer_norm",
    "fused_recursive_layer_norm",
    "fused_self_adaptive_scaling",
    "recursive_layer_norm",
    "scaling_gate",
    "self_adaptive_scaling",
    "single_layer_gate",
    "sinkhorn",
    "use_kernels",
]
