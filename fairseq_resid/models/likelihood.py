"""The negative log-likelihood (NLL) of translations or captions under a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def token_nll(
    model: Any, net_input: Mapping[str, Any], target: Tensor, padding: int, excluded: Sequence[int] = ()
) -> Tensor:
    """Return the NLL of every target token, given the source and the target tokens before it (teacher-forced).

    Formula:  -ln p(target_t | target_<t, source), without label smoothing
    excluded: tokens whose probability is distributed over the others, in proportion to theirs
    Shapes:   target (B, T), including the end-of-sentence mark -> (B, T), 0 at padding
    Dtype:    fp32; unit: nats
    """
    log_probabilities = model.get_normalized_probs(model(**net_input), log_probs=True)
    if excluded:
        numbers = torch.tensor(excluded, device=target.device)
        log_probabilities = log_probabilities.float().index_fill(-1, numbers, -math.inf).log_softmax(-1)
    nll = -log_probabilities.float().gather(-1, target.unsqueeze(-1)).squeeze(-1)
    return nll.masked_fill(target.eq(padding), 0.0)
