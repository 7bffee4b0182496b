"""The functions that structures and criteria share, and the compilation of sites; only torch is required."""

from .compilation import BACKENDS, FORMER, compiled_formula, is_recorded, missing_compiler, settled
from .cross_entropy import chunked_label_smoothed_cross_entropy
from .gates import dense_gate, scaling_gate, single_layer_gate
from .sinkhorn import sinkhorn

__all__ = [
    "BACKENDS",
    "FORMER",
    "chunked_label_smoothed_cross_entropy",
    "compiled_formula",
    "dense_gate",
    "is_recorded",
    "missing_compiler",
    "scaling_gate",
    "settled",
    "single_layer_gate",
    "sinkhorn",
]
