"""Name the cause in one line if a checkpoint does not fit the model: dictionary, size, number of layers or structure.

torch lists every tensor that is missing, unexpected or of another shape: hundreds for a single wrong flag.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from torch import Tensor

from .errors import UserError
from .patching import wrap

TABLES = ("embed_tokens.weight", "output_projection.weight")  # one row per entry of a dictionary
LAYER = re.compile(r"(?:.*\.)?(\w+)\.layers\.(\d+)\.")
STACKS = ("encoder", "decoder")


def _depths(names: Iterable[str]) -> Counter[str]:
    return Counter(stack for stack, _ in dict.fromkeys(one.groups() for one in map(LAYER.match, names) if one))


def misfit(theirs: Mapping[str, Tensor], own: Mapping[str, Tensor], name: str) -> str:
    """Return why the tensors of a checkpoint do not fit those of a model; name: the flag of its structure."""
    there, here = _depths(theirs), _depths(own)
    words, sizes, layers, structure = [], [], [], []
    for tensor in filter(theirs.__contains__, own):
        shape, expected = [*theirs[tensor].shape], [*own[tensor].shape]
        if tensor.endswith(TABLES) and shape != expected and shape[1:] == expected[1:]:
            words.append(f"its dictionary has {shape[0]:,} entries and that of the data {expected[0]:,} ({tensor})")
        elif shape != expected:
            sizes.append(f"{tensor} has the shape {shape} in the checkpoint and {expected} in the model")
    for stack in here | there:
        if there[stack] != here[stack]:
            layers.append(f"the checkpoint has {there[stack]} {stack} layers and the model {here[stack]}")
    common = here & there
    for lacking, tensors, others in (("checkpoint", own, theirs), ("model", theirs, own)):
        lost = [one for one in tensors if one not in others]
        lost = [one for one in lost if not (found := LAYER.match(one)) or int(found[2]) < common[found[1]]]
        structure += [f"the {lacking} lacks {lost[0]}{_such(len(lost))}"] if lost else []
    causes = [*words[:1], *(f"{one}{_such(len(sizes))}" for one in sizes[:1]), *layers, *structure]
    what = name if structure else "the model" if sizes or layers else "the data"
    return f"the checkpoint does not fit {what}: {'; '.join(causes)}"


def _such(count: int) -> str:
    return f" ({count:,} such tensors)" if count > 1 else ""


def name_misfits() -> None:
    """Name the cause if a checkpoint does not fit a model of fairseq, and refuse to prune only one of its stacks.

    fairseq's prune_state_dict would drop all layers of the other one.
    """
    from fairseq import checkpoint_utils
    from fairseq.models.fairseq_model import BaseFairseqModel

    @wrap(BaseFairseqModel)
    def load_state_dict(original, self, state_dict, strict=True, model_cfg=None, args=None):
        for stack, other in (STACKS, STACKS[::-1]):
            kept, others = (getattr(model_cfg, f"{one}_layers_to_keep", None) for one in (stack, other))
            if kept and not others and (count := _depths(state_dict)[other]):
                raise UserError(
                    f"{stack}_layers_to_keep {kept}: fairseq would drop all {other} layers; give "
                    f"{other}_layers_to_keep too, for example {','.join(map(str, range(count)))}"
                )
        unpruned = copy.copy(model_cfg)  # pruning removes the layers to keep from the config
        try:
            return original(self, state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            if not str(error).startswith("Error(s) in loading state_dict"):
                raise
            arch = getattr(model_cfg, "arch", type(self).__name__)
            name = self.named() if hasattr(self, "named") else f"--arch {arch}"
            theirs = checkpoint_utils.prune_state_dict(state_dict, unpruned)
            raise UserError(misfit(theirs, self.state_dict(), name)) from None
