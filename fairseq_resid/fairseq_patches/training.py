"""What a training says of itself, and what it does with numbers that are not finite."""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter

from .errors import UserError

logger = logging.getLogger(__name__)


# How the message begins when loss or gradient are not finite; a study looks for it in the log.
DIVERGED = "the training diverged"


def say_what_runs() -> None:
    """Let the trainer log which LayerNorm and which optimizer run.

    fairseq takes those of NVIDIA's apex wherever it can import them beside a GPU, and says so of Adam alone: two
    measurements, or two trainings, can differ by what happens to be installed.
    """
    from fairseq.trainer import Trainer

    original = Trainer._build_optimizer

    @functools.wraps(original)
    def _build_optimizer(self):  # type: ignore[no-untyped-def]
        original(self)
        norms = Counter(type(module) for module in self.model.modules() if hasattr(module, "normalized_shape"))
        kinds = ", ".join(f"{count} {kind.__module__}.{kind.__qualname__}" for kind, count in norms.items())
        optimizer = type(self._optimizer.optimizer)
        logger.info(f"layer norms: {kinds or 'none'}; optimizer: {optimizer.__module__}.{optimizer.__qualname__}")

    Trainer._build_optimizer = _build_optimizer


def name_divergence() -> None:
    """Let a training end in one line if its loss or its gradient is not finite; the model may know a remedy.

    Trainer.train_step then searches for the first bad module with NanDetector. Under its hooks, torch looks for a
    tensor among the values of the dict that a Transformer's encoder returns, which are lists: a bare StopIteration.
    Several GPUs report a gradient that is not finite as one that is "inconsistent between workers".
    """
    from fairseq.trainer import Trainer

    original = Trainer.train_step

    @functools.wraps(original)
    def train_step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        try:
            return original(self, *args, **kwargs)
        except (FloatingPointError, StopIteration) as error:
            cause = error.__context__ if isinstance(error, StopIteration) else error
            if not isinstance(cause, FloatingPointError):
                raise
            if "inconsistent" in str(cause) and not re.search(r"= -?(nan|inf)", str(cause)):
                raise cause from None  # finite, and not the same everywhere
            advice = getattr(self.get_model(), "divergence_advice", lambda: "use a lower --lr")()
            raise UserError(
                f"{DIVERGED} at update {self.get_num_updates() + 1} (learning rate {self.get_lr():g}): "
                f"its loss or its gradient is not finite; {advice}"
            ) from cause

    Trainer.train_step = train_step


def skip_overflow_without_gpu() -> None:
    """Let a training in fp16 on a CPU go on after an overflow of its gradients, as one on a GPU does.

    After it, Trainer.train_step moves a zero that nothing reads to the GPU: without one, a traceback.
    """
    from fairseq.trainer import Trainer

    original = Trainer.train_step

    @functools.wraps(original)
    def train_step(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        try:
            return original(self, *args, **kwargs)
        except (AssertionError, RuntimeError) as error:  # of a torch without CUDA, and of one with it
            if self.cuda or not isinstance(error.__context__, OverflowError):
                raise
            self.zero_grad()  # all that is left to do
            return None

    Trainer.train_step = train_step


def unscale_once() -> None:
    """Let a training by --amp take whole steps.

    AMPOptimizer.clip_grad_norm unscales the gradients of torch's optimizer, and its step gives the scaler fairseq's
    wrapper of it, which the scaler takes for another one and unscales again: gradients are divided by the loss scale
    twice. Adam does not see it; SGD's steps are 1/128 as long, and less with every growth of the scale.
    """
    from fairseq.optim.amp_optimizer import AMPOptimizer

    def step(self):  # type: ignore[no-untyped-def]
        self.scaler.step(self.optimizer)
        self.scaler.update()

    AMPOptimizer.step = step
