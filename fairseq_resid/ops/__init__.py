"""The mathematics of the residual structures as functions on tensors: the eager reference. Needs torch alone."""

from .gates import dense_gate, scaling_gate, single_layer_gate
from .recursive import recursive_layer_norm
from .sas import self_adaptive_scaling

__all__ = ["dense_gate", "recursive_layer_norm", "scaling_gate", "self_adaptive_scaling", "single_layer_gate"]
