"""Name the cause in one line if a checkpoint does not fit the model: dictionary, size, number of layers or structure.

torch lists every tensor that is missing, unexpected or of another shape: hundreds for a single wrong flag.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable
from typing import Any

from .errors import UserError

MISMATCH = re.compile(
    r"size mismatch for (\S+): copying a param with shape torch\.Size\(\[([\d, ]*)\]\) from checkpoint, "
    r"the shape in current model is torch\.Size\(\[([\d, ]*)\]\)"
)
NAMES = r'%s key\(s\) in state_dict: ((?:"[^"]*"(?:, )?)*)'
TABLES = ("embed_tokens.weight", "output_projection.weight")  # one row per entry of a dictionary
LAYER = re.compile(r"(?:.*\.)?(\w+)\.layers\.(\d+)\.")
STACKS = ("encoder", "decoder")


def _names(what: str, said: str) -> list[str]:
    found = re.search(NAMES % what, said)
    return re.findall('"([^"]*)"', found[1]) if found else []


def _layers(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, set[str]] = {}
    for match in filter(None, map(LAYER.match, names)):
        found.setdefault(match[1], set()).add(match[2])
    return {stack: len(numbers) for stack, numbers in found.items()}


def _such(count: int) -> str:
    return f" ({count:,} such tensors)" if count > 1 else ""


def misfit(said: str, own: Collection[str], name: str) -> str:
    """Return why a checkpoint does not fit a model.

    said: the error of torch's load_state_dict; own: the names of the model's tensors; name: the flag of its structure
    """
    missing, unexpected = _names("Missing", said), _names("Unexpected", said)
    mine, theirs = _layers(own), _layers({*own}.difference(missing).union(unexpected))
    common = {stack: min(mine.get(stack, 0), theirs.get(stack, 0)) for stack in {**mine, **theirs}}
    depths, sizes, words, structure = [], [], [], []
    for stack in common:
        if mine.get(stack, 0) != theirs.get(stack, 0):
            depths.append(
                f"the checkpoint has {theirs.get(stack, 0)} {stack} layers and the model {mine.get(stack, 0)}"
            )
    for tensor, *both in MISMATCH.findall(said):
        there, here = ([int(size) for size in shape.split(",") if size] for shape in both)
        if tensor.endswith(TABLES) and there[1:] == here[1:]:
            words.append(f"its dictionary has {there[0]:,} entries and that of the data {here[0]:,} ({tensor})")
        else:
            sizes.append(f"{tensor} has the shape {there} in the checkpoint and {here} in the model")
    for lacking, tensors in (("checkpoint", missing), ("model", unexpected)):
        others = [one for one in tensors if not (found := LAYER.match(one)) or int(found[2]) < common[found[1]]]
        structure += [f"the {lacking} lacks {others[0]}{_such(len(others))}"] if others else []
    causes = [*words[:1], *(f"{one}{_such(len(sizes))}" for one in sizes[:1]), *depths, *structure]
    what = name if structure else "the model" if sizes or depths else "the data"
    return f"the checkpoint does not fit {what}: {'; '.join(causes)}"


def _check_pruning(state_dict: Collection[str], config: Any) -> None:
    """Refuse layers to keep in one stack only.

    fairseq's prune_state_dict would drop all layers of the other stack.
    Raises: UserError.
    """
    kept = {stack: getattr(config, f"{stack}_layers_to_keep", None) for stack in STACKS}
    for stack, other in (STACKS, STACKS[::-1]):
        names = [name for name in state_dict if name.startswith(f"{other}.layers.")]
        if kept[stack] and not kept[other] and names:
            every = ",".join(map(str, range(_layers(names)[other])))
            raise UserError(
                f"{stack}_layers_to_keep {kept[stack]}: fairseq would drop all {other} layers; give "
                f"{other}_layers_to_keep too, for example {every}"
            )


def name_misfits() -> None:
    """Name the cause if the weights of a checkpoint do not fit a model of fairseq."""
    from fairseq.models.fairseq_model import BaseFairseqModel

    original = BaseFairseqModel.load_state_dict

    @functools.wraps(original)
    def load_state_dict(self, state_dict, strict=True, model_cfg=None, args=None):  # type: ignore[no-untyped-def]
        _check_pruning(state_dict, model_cfg)
        try:
            return original(self, state_dict, strict, model_cfg, args)
        except RuntimeError as error:
            if not str(error).startswith("Error(s) in loading state_dict"):
                raise
            arch = getattr(model_cfg, "arch", type(self).__name__)
            name = self.named() if hasattr(self, "named") else f"--arch {arch}"
            raise UserError(misfit(str(error), self.state_dict(), name)) from None

    BaseFairseqModel.load_state_dict = load_state_dict
