"""Patches for the training log, and for losses and gradients that are not finite."""

from __future__ import annotations

import logging
import re
from collections import Counter

from .errors import UserError
from .patching import wrap

logger = logging.getLogger(__name__)


# The beginning of the error for a loss or gradient that is not finite. Studies search for it in the log.
DIVERGED = "training diverged"


def say_what_runs() -> None:
    """Log which implementations of LayerNorm and the optimizer are used.

    fairseq uses NVIDIA apex if it is installed and a GPU is present, but logs this only for Adam. Two measurements
    or training runs may therefore differ merely because of the packages that happen to be installed.
    """
    from fairseq.trainer import Trainer

    @wrap(Trainer)
    def _build_optimizer(original, self):
        original(self)
        norms = Counter(type(module) for module in self.model.modules() if hasattr(module, "normalized_shape"))
        kinds = ", ".join(f"{count} {kind.__module__}.{kind.__qualname__}" for kind, count in norms.items())
        optimizer = type(self._optimizer.optimizer)
        logger.info(f"layer norms: {kinds or 'none'}; optimizer: {optimizer.__module__}.{optimizer.__qualname__}")


def name_divergence() -> None:
    """Report a loss or gradient that is not finite as a one-line error, with the model's advice if it has any.

    Trainer.train_step then searches for the first bad module with NanDetector. Under its hooks, torch looks for a
    tensor among the values of the dict that a Transformer encoder returns. They are lists, so a bare StopIteration is
    raised. Several GPUs report a non-finite gradient as "inconsistent between workers".
    """
    from fairseq.trainer import Trainer

    @wrap(Trainer)
    def train_step(original, self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        except (FloatingPointError, StopIteration) as error:
            cause = error.__context__ if isinstance(error, StopIteration) else error
            if not isinstance(cause, FloatingPointError):
                raise
            if "inconsistent" in str(cause) and not re.search(r"= -?(nan|inf)", str(cause)):
                raise cause from None  # finite but different between workers
            advice = getattr(self.get_model(), "divergence_advice", lambda: "use a lower --lr")()
            raise UserError(
                f"{DIVERGED} at update {self.get_num_updates() + 1} (learning rate {self.get_lr():g}): "
                f"loss or gradient is not finite (NaN or infinite); {advice}"
            ) from cause


def skip_overflow_without_gpu() -> None:
    """Let fp16 training on a CPU continue after a gradient overflow, as on a GPU.

    After an overflow, Trainer.train_step moves an unused zero to the GPU, which raises an exception on a CPU.
    """
    from fairseq.trainer import Trainer

    @wrap(Trainer)
    def train_step(original, self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        except (AssertionError, RuntimeError) as error:  # from torch without and with CUDA
            if self.cuda or not isinstance(error.__context__, OverflowError):
                raise
            self.zero_grad()  # the only remaining step of train_step
            return None


def unscale_once() -> None:
    """Fix the step size under --amp.

    AMPOptimizer.clip_grad_norm unscales the gradients of torch's optimizer. Its step then passes fairseq's wrapper to
    the scaler, which treats it as another optimizer and unscales again: gradients are divided by the loss scale twice.
    Adam is invariant to this, but SGD's steps are 128 times too short, and even shorter when the scale grows.
    """
    from fairseq.optim.amp_optimizer import AMPOptimizer

    def step(self):
        self.scaler.step(self.optimizer)
        self.scaler.update()

    AMPOptimizer.step = step
