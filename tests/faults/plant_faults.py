"""Do the tests find faults? Plants one fault at a time in a copy of the project, and runs the tests that must find it.

    python tests/faults/plant_faults.py [--only NAME ...] [--jobs N] [--markdown FILE]

In the environment that scripts/setup.sh --with-tests makes. A fault is found if `pytest -x` on the test files named
beside it fails within 2 minutes. First the same files must pass without a fault. Exit code 1 if a fault is not found.
tests/faults/test_faults.py makes sure, in every test run, that each fault still fits the source.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 120  # seconds for a fault to be found


@dataclass(frozen=True)
class Fault:
    """In `file` the text `right`, which occurs once, becomes `wrong`; `tests` (files, space between) must fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str

    def plant(self, tree: Path) -> None:
        """Change the file in a copy of the project.

        Raises: ValueError unless the text occurs once.
        """
        file = tree / self.file
        text = file.read_text(encoding="utf-8")
        if (times := text.count(self.right)) != 1:
            raise ValueError(f"{self.name}: {self.file} holds its text {times} times, not once: {self.right!r}")
        file.write_text(text.replace(self.right, self.wrong), encoding="utf-8")


FAULTS = [
    # --- formulas
    Fault(
        "sas: wrong sign in the coupled γ",
        "fairseq_resid/connections/self_adaptive.py",
        "(1 - alpha) * (1 - beta)",
        "(1 - alpha) * (1 + beta)",
        "connections/test_connections.py",
    ),
    Fault(
        "sas: the gates see F before dropout",
        "fairseq_resid/connections/base.py",
        "return self.combine(state, self.dropout(f_out))",
        "return self.dropout(self.combine(state, f_out))",
        "connections/test_connections.py",
    ),
    Fault(
        "sas: α and β exchanged",
        "fairseq_resid/connections/self_adaptive.py",
        "alpha, beta = values[0], values[1]",
        "beta, alpha = values[0], values[1]",
        "connections/test_connections.py",
    ),
    Fault(
        "sas: the gate's two halves exchanged",
        "fairseq_resid/ops/gates.py",
        "hidden = torch.addmm(hidden, f.reshape(-1, channels), f_weight.t())",
        "hidden = torch.addmm(hidden, x.reshape(-1, channels), f_weight.t())",
        "connections/test_connections.py",
    ),
    Fault(
        "rskip_ln: the recursion adds F in place of x",
        "fairseq_resid/connections/recursive.py",
        "y = norm(x + y)",
        "y = norm(f + y)",
        "connections/test_connections.py",
    ),
    Fault(
        "rskip_ln: all norms are the first one",
        "fairseq_resid/connections/recursive.py",
        "for norm in self.recursive_norms:",
        "for norm in [self.norm for _ in self.recursive_norms]:",
        "connections/test_connections.py",
    ),
    Fault(
        "xskip: λ scales the branch",
        "fairseq_resid/connections/expanded.py",
        "return torch.add(branch, x, alpha=self.skip_lambda)",
        "return torch.add(x, branch, alpha=self.skip_lambda)",
        "connections/test_connections.py",
    ),
    Fault(
        "xskip: the branch's scale is forgotten",
        "fairseq_resid/connections/expanded.py",
        "branch = f if self.branch_scale == 1.0 else self.branch_scale * f",
        "branch = f",
        "connections/test_connections.py",
    ),
    Fault(
        "highway: the gate favours the wrong side",
        "fairseq_resid/connections/gated.py",
        "return x + self.gated(x, f) * (f - x)",
        "return x + self.gated(x, f) * (x - f)",
        "connections/test_connections.py",
    ),
    Fault(
        "shortcut_gate: g in place of 1 - g",
        "fairseq_resid/connections/gated.py",
        "torch.addcmul(f, 1 - self.gated(x, f), x)",
        "torch.addcmul(f, self.gated(x, f), x)",
        "connections/test_connections.py",
    ),
    Fault(
        "norm: another eps",
        "fairseq_resid/connections/place.py",
        "EPS = 1e-5",
        "EPS = 1e-6",
        "connections/test_connections.py models/test_models.py",
    ),
    Fault(
        "deep_norm: the decoder has the scales of a single stack",
        "fairseq_resid/connections/deep_norm.py",
        "return (3 * m) ** 0.25, (12 * m) ** -0.25",
        "return (2 * m) ** 0.25, (8 * m) ** -0.25",
        "structures/deep_norm.py",
    ),
    Fault(
        "keel: the first layer's shortcut is scaled too",
        "fairseq_resid/connections/deep_norm.py",
        "self.alpha = 1.0 if place.layer == 0 else float(place.sites)",
        "self.alpha = float(place.sites)",
        "connections/test_streams.py",
    ),
    Fault(
        "resi_dual: the sum of the branches gets the normalised stream",
        "fairseq_resid/connections/resi_dual.py",
        "(d + f).to(y.dtype)",
        "(d + y).to(y.dtype)",
        "connections/test_streams.py",
    ),
    Fault(
        "hyper: every site reads the first stream",
        "fairseq_resid/connections/hyper.py",
        "reading[0, place.index % self.streams] = 1.0",
        "reading[0, 0] = 1.0",
        "structures/hyper.py",
    ),
    Fault(
        "b2t: the last norm of a layer does not see what the layer got",
        "fairseq_resid/connections/b2t.py",
        "return self.norm(x + f + bottom)",
        "return self.norm(x + f)",
        "connections/test_connections.py connections/test_streams.py",
    ),
    Fault(
        "admin: a profiled weight is not used at once",
        "fairseq_resid/connections/weighted.py",
        "gathered = float((x.float() * omega).var(correction=0)",
        "gathered = float(x.float().var(correction=0)",
        "structures/admin.py",
    ),
    Fault(
        "attn_residual: a block's sum begins with the embedding",
        "fairseq_resid/connections/attention.py",
        "is_first = (values - 1) % self.block_size == 0",
        "is_first = values % self.block_size == 0",
        "connections/test_streams.py",
    ),
    Fault(
        "dense_former: it starts with the mean of the embedding",
        "fairseq_resid/connections/dense.py",
        "start[-1] = 1.0",
        "start[0] = 1.0",
        "structures/dense_former.py",
    ),
    Fault(
        "a growing state writes into what a user gave",
        "fairseq_resid/connections/growing.py",
        "return lies_in_rows and after <= width and not is_first",
        "return lies_in_rows and after <= width",
        "connections/test_streams.py",
    ),
    Fault(
        "rezero: the sites of a layer do not share their scalar",
        "fairseq_resid/models/layers.py",
        "        site.share(first)",
        "        pass",
        "models/test_frozen.py",
    ),
    Fault(
        "places: pruned layers are counted anew",
        "fairseq_resid/models/translation.py",
        'layer = sorted(int(number) for number in kept.split(","))[built] if kept else built',
        "layer = built",
        "models/test_architectures.py",
    ),
    Fault(
        "--final-norm: the decoder's is forgotten",
        "fairseq_resid/models/translation.py",
        'has_norm = getattr(cfg, "final_norm", "none") == "layer" and not (',
        'has_norm = getattr(cfg, "final_norm", "none") == "layer" and stack == "encoder" and not (',
        "models/test_frozen.py",
    ),
    # --- kernels
    Fault(
        "kernel: the last norm adds no gradient to x",
        "fairseq_resid/ops/kernels.py",
        "        g = norm_backward(g * w1, u1, tl.load(stats + 1), C)\n        dx += g",
        "        g = norm_backward(g * w1, u1, tl.load(stats + 1), C)",
        "ops/test_kernels.py",
    ),
    Fault(
        "kernel: the norm's derivative without its second mean",
        "fairseq_resid/ops/kernels.py",
        "rstd * (q - sum_q / C - u * (sum_qu / C))",
        "rstd * (q - sum_q / C)",
        "ops/test_kernels.py",
    ),
    Fault(
        "kernel: dF is not masked by dropout",
        "fairseq_resid/ops/kernels.py",
        "df = tl.where(survives(seed, row, cols, threshold), df, 0.0)\n"
        "        tl.store(df_ptr + offsets, df.to(df_ptr.dtype.element_ty), mask=inside)\n    sums =",
        "df = df\n        tl.store(df_ptr + offsets, df.to(df_ptr.dtype.element_ty), mask=inside)\n    sums =",
        "ops/test_kernels.py",
    ),
    # --- model
    Fault(
        "encoder layer: the feed-forward branch gets x after the site",
        "fairseq_resid/models/layers.py",
        "        x = self.ffn_residual(x, fc_result)\n",
        "        x = self.ffn_residual(fc_result, x)\n",
        "models/test_stock_equality.py",
    ),
    Fault(
        "decoder layer: encoder attention does not use its site",
        "fairseq_resid/models/layers.py",
        "x = self.encoder_attn_residual(x, attended)",
        "x = self.self_attn_residual(x, attended)",
        "models/test_stock_equality.py",
    ),
    Fault(
        "pre_ln: the branch sees x without the norm",
        "fairseq_resid/connections/plain.py",
        "        return self.norm(x)\n",
        "        return x\n",
        "connections/test_connections.py",
    ),
    Fault(
        "stock names: the norm of self-attention is taken for the feed-forward's",
        "fairseq_resid/models/translation.py",
        '"self_attn_layer_norm": "self_attn_residual.norm"',
        '"self_attn_layer_norm": "ffn_residual.norm"',
        "models/test_stock_equality.py",
    ),
    # --- fairseq
    Fault(
        "the last batch is dropped",
        "fairseq_resid/compat/data.py",
        "        if kept < len(indices) and",
        "        if kept > len(indices) and",
        "compat/test_compat.py",
    ),
    Fault(
        "checkpoints: what a file names is imported",
        "fairseq_resid/compat/reader.py",
        '        raise Refused(f"it holds {shown(full)[1:-1]}',
        '        return super().find_class(module, name)\n        raise Refused(f"it holds {shown(full)[1:-1]}',
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a tensor may have more elements than its storage",
        "fairseq_resid/compat/reader.py",
        "if count and not (count <= held and last < held):",
        "if count and not last < held:",
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: records may be larger than the file",
        "fairseq_resid/compat/reader.py",
        "for member in members) <= size,",
        "for member in members) >= 0,",
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: shared lists may be walked for ever",
        "fairseq_resid/compat/reader.py",
        "left = 2 * program.reads",
        "left = 1 << 62",
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: anything may be a key",
        "fairseq_resid/compat/reader.py",
        'require(is_plain, f"a dict',
        'require(is_plain or True, f"a dict',
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a named pipe is opened",
        "fairseq_resid/compat/loading.py",
        "if os.path.lexists(path) and not os.path.isfile(path):",
        "if os.path.isdir(path):",
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: NaN passes",
        "fairseq_resid/compat/loading.py",
        "if not tensor.sum(dtype=torch.float64).isfinite():",
        "if tensor.sum(dtype=torch.float64) is None:",
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a config may name the environment",
        "fairseq_resid/compat/loading.py",
        "if any(isinstance(text, str) and RESOLVER",
        "if any(isinstance(text, bytes) and RESOLVER",
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a config may ask for any number of positions",
        "fairseq_resid/compat/building.py",
        "        except UserError:\n            raise\n",
        "",
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a config may ask for any number of layers",
        "fairseq_resid/compat/building.py",
        "hook = register_module_parameter_registration_hook(count)",
        "hook = register_module_parameter_registration_hook(lambda *_: None)",
        "compat/test_hostile_checkpoints.py",
    ),
    Fault(
        "configs with code in them are let through",
        "fairseq_resid/compat/loading.py",
        "    refuse_code(state, path)\n    forget_files(state, path)",
        "    forget_files(state, path)",
        "compat/test_compat.py",
    ),
    Fault(
        "stopping: a signal does not save",
        "fairseq_resid/compat/stopping.py",
        "            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, losses[0])",
        "            pass",
        "training/test_stopping.py",
    ),
    Fault(
        "stopping: terminated twice, a training ends at once",
        "fairseq_resid/compat/stopping.py",
        "if number == _Stop.asked == signal.SIGINT:",
        "if number == _Stop.asked:",
        "training/test_stopping.py",
    ),
    Fault(
        "other devices: the place in the epoch is counted in the batches of one process",
        "fairseq_resid/compat/data.py",
        "share = done * there[0] / there[1]",
        "share = done * here[0] / there[1]",
        "training/test_distributed_and_resume.py",
    ),
    Fault(
        "processes: one that differs is not noticed",
        "fairseq_resid/compat/processes.py",
        "if there != first]",
        "if there is first is None]",
        "training/test_stopping.py",
    ),
    Fault(
        "full disks: the old checkpoint is written over",
        "fairseq_resid/compat/writing.py",
        'shutil.copyfile(src_path, f"{dst_path}.tmp")',
        'shutil.copyfile(src_path, dst_path); shutil.copyfile(src_path, f"{dst_path}.tmp")',
        "training/test_stopping.py",
    ),
    Fault(
        "resuming: a hole in a checkpoint is not seen",
        "fairseq_resid/training/launch.py",
        "return archive.testzip() is None",
        "return bool(archive.namelist())",
        "training/test_stopping.py",
    ),
    # --- averaging, decoding, scoring
    Fault(
        "averaging: the sum is divided by one too few",
        "fairseq_resid/evaluation/averaging.py",
        ".div_(len(paths))",
        ".div_(len(paths) - 1 or 1)",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "averaging: the best checkpoint counts",
        "fairseq_resid/folders/run.py",
        'r"checkpoint(\\d+)\\.pt"',
        'r"checkpoint(\\d+|_best)\\.pt"',
        "evaluation/test_averaging.py",
    ),
    Fault(
        "averaging: the first files in place of the last",
        "fairseq_resid/evaluation/averaging.py",
        "return numbered[-last:]",
        "return numbered[:last]",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "averaging: another dtype passes",
        "fairseq_resid/evaluation/averaging.py",
        "            if (shape, dtype, tied) != actual[name]:",
        "            if shape != actual[name][0]:",
        "evaluation/test_averaging.py",
    ),
    Fault(
        "decoding: a missing hypothesis passes",
        "fairseq_resid/evaluation/decoding.py",
        "    if missing:",
        "    if False:",
        "evaluation/test_evaluation.py",
    ),
    Fault(
        "scoring: BLEU of another tokenisation",
        "fairseq_resid/evaluation/scoring.py",
        "metric = BLEU(tokenize=tokenize, lowercase=lowercase",
        'metric = BLEU(tokenize="intl", lowercase=lowercase',
        "evaluation/test_evaluation.py",
    ),
    Fault(
        "comparison: scores of other test sets are compared",
        "fairseq_resid/evaluation/compare.py",
        "            if mine[what] != theirs[what]:",
        "            if False:",
        "evaluation/test_compare.py",
    ),
    # --- training
    Fault(
        "plan: update-freq is ignored in the effective batch",
        "fairseq_resid/training/plan.py",
        "        return self.world_size * self.size * self.update_freq",
        "        return self.world_size * self.size",
        "training/test_plan.py",
    ),
    Fault(
        "plan: bf16 on GPUs that have none",
        "fairseq_resid/training/plan.py",
        "capability >= (8, 0)",
        "capability >= (7, 0)",
        "training/test_plan.py",
    ),
    Fault(
        "launch: a run goes on under changed settings",
        "fairseq_resid/training/launch.py",
        'WHERE = ("--user-dir", ',
        'WHERE = ("--lr", "--user-dir", ',
        "training/test_training.py",
    ),
    Fault(
        "Slurm: the process's device is chosen by its rank among all",
        "fairseq_resid/training/devices.py",
        '"SLURM_STEP_NUM_TASKS", "SLURM_LOCALID")',
        '"SLURM_STEP_NUM_TASKS", "SLURM_PROCID")',
        "training/test_plan.py",
    ),
    # --- corpora
    Fault(
        "archives: a name that leads out of the folder is not noticed",
        "fairseq_resid/commands/extract.py",
        'or ".." in PurePosixPath(name).parts',
        "",
        "commands/test_extract.py",
    ),
    Fault(
        "archives: a wrong checksum passes",
        "fairseq_resid/commands/fetch.py",
        "if expected is not None and actual != expected:",
        'if expected is not None and kind == "bytes" and actual != expected:',
        "commands/test_fetch.py corpora/test_provenance.py",
    ),
    Fault(
        "cleaning: the ratio is of the source alone",
        "fairseq_resid/corpora/clean.py",
        "max(source, target) > self.max_ratio * min(source, target)",
        "source > self.max_ratio * target",
        "corpora/test_clean.py",
    ),
    Fault(
        "cleaning: test text is cleaned too",
        "fairseq_resid/corpora/text_steps.py",
        "limits = job.limits if is_train else None",
        "limits = job.limits",
        "corpora/test_provenance.py corpora/test_prepare.py",
    ),
    Fault(
        "references: written from the normalised text",
        "fairseq_resid/commands/extract.py",
        'LAYOUT = re.compile(r"[ \\t\\r\\n\\f\\v]+")',
        'LAYOUT = re.compile(r"\\s+")',
        "commands/test_extract.py corpora/test_provenance.py",
    ),
    Fault(
        "data folder: sizes are not compared",
        "fairseq_resid/folders/data.py",
        "file.stat().st_size != sizes[name]",
        "file.stat().st_size < 0",
        "corpora/test_provenance.py",
    ),
    Fault(
        "text: escapes undone twice",
        "fairseq_resid/text.py",
        "for character, entity in reversed(ESCAPES.items()):",
        "for character, entity in ESCAPES.items():",
        "corpora/test_prepare.py",
    ),
    Fault(
        "steps: a damaged result of an earlier step is used",
        "fairseq_resid/corpora/steps.py",
        "(folder / file).stat().st_size == size",
        "(folder / file).stat().st_size >= 0",
        "corpora/test_prepare_stopped.py",
    ),
    Fault(
        "shards: those of another text are used",
        "fairseq_resid/corpora/shards.py",
        "        key.update((source.sha256 + target.sha256).encode())\n",
        "",
        "corpora/test_shards.py",
    ),
    Fault(
        "shards: half a shard that a kill left is kept",
        "fairseq_resid/corpora/shards.py",
        "                    file.truncate(place)\n",
        "",
        "corpora/test_shards.py",
    ),
    # --- images
    Fault(
        "image models: the first block's pre-activation stands in the branch alone",
        "fairseq_resid/models/residual_network.py",
        "shares = has_ahead and (changes or is_first)",
        "shares = has_ahead and changes",
        "vision/test_image_models.py",
    ),
    Fault(
        "image models: sas starts as for translation",
        "fairseq_resid/models/classifier.py",
        'SAS_STARTS = {"sas_alpha_bias": 3.0, "sas_beta_bias": -3.0}',
        'SAS_STARTS = {"sas_alpha_bias": 0.0, "sas_beta_bias": 0.0}',
        "vision/test_image_models.py",
    ),
    Fault(
        "image models: LN over rows of the image",
        "fairseq_resid/models/classifier.py",
        "    return x.permute(0, 2, 3, 1)\n",
        "    return x.transpose(1, 3)\n",
        "vision/test_image_models.py",
    ),
    Fault(
        "image models: the identity is part of what is stored",
        "fairseq_resid/models/two_streams.py",
        "        return self._conv_forward(x, self.weight + self.identity, self.bias)\n",
        "        return self._conv_forward(x, self.weight, self.bias)\n",
        "vision/test_image_models.py",
    ),
    Fault(
        "images: every epoch has the same crops",
        "fairseq_resid/vision/augmentation.py",
        "np.random.Philox(key=[seed, epoch])",
        "np.random.Philox(key=[seed, 1])",
        "vision/test_image_models.py",
    ),
    Fault(
        "images: the batches of an epoch are those of the first",
        "fairseq_resid/tasks/images.py",
        "np.random.Philox(key=[self.seed, self.epoch], counter=ORDER)",
        "np.random.Philox(key=[self.seed, 1], counter=ORDER)",
        "vision/test_image_models.py",
    ),
    Fault(
        "images: a mirrored crop is shifted to the wrong side",
        "fairseq_resid/vision/augmentation.py",
        "            right = -right\n",
        "            pass\n",
        "vision/test_image_models.py",
    ),
    Fault(
        "images: validation is cropped at random",
        "fairseq_resid/tasks/images.py",
        'self.open(split, split == getattr(self.args, "train_subset", "train"))',
        "self.open(split, True)",
        "vision/test_image_models.py",
    ),
    Fault(
        "images: a model is evaluated in training mode",
        "fairseq_resid/evaluation/images.py",
        "    model = (model.cuda() if on_gpu else model).eval()\n",
        "    model = (model.cuda() if on_gpu else model).train()\n",
        "vision/test_image_models.py",
    ),
    Fault(
        "images: p of images that both get wrong",
        "fairseq_resid/evaluation/images.py",
        "better = sum(other.is_wrong and not one.is_wrong",
        "better = sum(other.is_wrong",
        "vision/test_image_models.py",
    ),
    Fault(
        "images: gradients are normed over images together",
        "fairseq_resid/analysis/observe.py",
        "batch.by_example(y.grad.double()).flatten(1)",
        "y.grad.double().transpose(0, 1).flatten(1)",
        "vision/test_image_models.py",
    ),
    Fault(
        "study: the error is a share, not percent",
        "fairseq_resid/study/measures.py",
        "    return 100 * _mean(summed)\n",
        "    return _mean(summed)\n",
        "vision/test_image_models.py",
    ),
    Fault(
        "images: the superclass is taken for the class",
        "fairseq_resid/vision/sources.py",
        'labels = np.concatenate([some["labels"][:, manifest.labels.index("class")] for some in images])',
        'labels = np.concatenate([some["labels"][:, 0] for some in images])',
        "vision/test_images.py",
    ),
    Fault(
        "images: the first of every class are held out",
        "fairseq_resid/vision/prepare.py",
        "np.arange(len(labels)) >= ends - held[labels]",
        "np.arange(len(labels)) < ends - (counts - held)[labels]",
        "vision/test_images.py",
    ),
    Fault(
        "images: the deviation is that of the whole training part",
        "fairseq_resid/vision/prepare.py",
        'if split == "train":',
        'if split != "test":',
        "vision/test_images.py",
    ),
    Fault(
        "images: an image of another size passes",
        "fairseq_resid/vision/by_class.py",
        "if shape is not None and (height, width) != shape[1:]:",
        "if shape is not None and height != shape[1]:",
        "vision/test_images.py",
    ),
    # --- analysis, report, studies
    Fault(
        "analysis: a branch that matters is called off",
        "fairseq_resid/analysis/results.py",
        "site.nll_without - self.nll < NOTHING",
        "site.nll_without - self.nll > NOTHING",
        "report/test_report.py",
    ),
    Fault(
        "analysis: NLL counts padding",
        "fairseq_resid/models/likelihood.py",
        "nll.masked_fill(target.eq(padding), 0.0)",
        "nll",
        "analysis/test_analysis.py",
    ),
    Fault(
        "analysis: a coefficient of channels is taken for one of positions",
        "fairseq_resid/connections/base.py",
        "coefficient.dim() > len(positions) and coefficient.shape[: len(positions)] == positions",
        "coefficient.dim() >= 1",
        "analysis/test_analysis.py",
    ),
    Fault(
        "report: what a user calls things is markup",
        "fairseq_resid/report/report.py",
        "autoescape=True",
        "autoescape=False",
        "report/test_report.py",
    ),
    Fault(
        "report: steeper gradients are called flatter",
        "fairseq_resid/report/findings.py",
        "mine[stack] < theirs[stack]",
        "mine[stack] > theirs[stack]",
        "report/test_report.py",
    ),
    Fault(
        "study: tuning ends on the edge of the grid",
        "fairseq_resid/study/plan.py",
        "if beyond is not None and",
        "if beyond is None and",
        "study/test_study.py",
    ),
    Fault(
        "study: a diverged training is the best",
        "fairseq_resid/study/kept.py",
        'self.valid.get("averaged", self.valid.get("last", math.inf))',
        'self.valid.get("averaged", self.valid.get("last", 0.0))',
        "study/test_study.py",
    ),
    Fault(
        "study: Holm's factor is one too small",
        "fairseq_resid/study/statistics.py",
        "len(known) - rank)",
        "len(known) - rank - 1)",
        "study/test_study.py",
    ),
    Fault(
        "study: the residual is counted twice",
        "fairseq_resid/study/statistics.py",
        " - sum(part for part, _ in residual)",
        "",
        "study/test_study.py",
    ),
    Fault(
        "study: the degrees of freedom are those of equal variances",
        "fairseq_resid/study/statistics.py",
        "variance**2 / spread if spread else",
        "float(sum(free for _, free in seeds)) if spread else",
        "study/test_study.py",
    ),
    Fault(
        "study: a test is made where the baseline did not train",
        "fairseq_resid/study/results.py",
        "elif kind.floor is not None:",
        "elif False:",
        "study/test_study.py",
    ),
    Fault(
        "study: the gap by epoch takes the first validation of an epoch",
        "fairseq_resid/study/results.py",
        'found[int(record["epoch"])] = factor * value',
        'found.setdefault(int(record["epoch"]), factor * value)',
        "study/test_study.py",
    ),
    Fault(
        "study: an interaction adds what it should subtract",
        "fairseq_resid/study/results.py",
        "(1.0, -1.0, -1.0, 1.0)",
        "(1.0, -1.0, 1.0, -1.0)",
        "study/test_study.py",
    ),
    Fault(
        "study: a contrast counts the tuning run as a seed",
        "fairseq_resid/study/results.py",
        "and not note.run.is_tuning",
        "",
        "study/test_study.py",
    ),
    Fault(
        "study: who has the baseline's value as its own is not compared at it",
        "fairseq_resid/study/results.py",
        '("own", "baseline", own.value)',
        '("own", "none", own.value)',
        "study/test_study.py",
    ),
    Fault(
        "study: a run keeps the folders of the machine",
        "fairseq_resid/study/kept.py",
        "flags.without(record.command, launch.WHERE)",
        "list(record.command)",
        "study/test_study.py",
    ),
    Fault(
        "study: two runs share a slot",
        "fairseq_resid/study/executors.py",
        "if process.code() is None}",
        "if process.code() is not None}",
        "study/test_study.py",
    ),
]


def copy(folder: Path) -> Path:
    """Copy what git tracks, or would, into a folder; return it."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def run(tree: Path, tests: str) -> tuple[int | None, float, str]:
    """Run test files in a copy: exit code (None: out of time), seconds, pytest's last line."""
    files = [f"tests/{name}" for name in tests.split()]
    environment = {**os.environ, "FAIRSEQ_RESID_VENV": str(Path(sys.executable).parent.parent), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    start = time.monotonic()
    process = subprocess.Popen(
        words, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = process.communicate(timeout=LIMIT if "planted" in tree.name else None)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, time.monotonic() - start, "out of time"
    lines = [line for line in output.splitlines() if line.startswith("FAILED")] or output.strip().splitlines()[-1:]
    return process.returncode, time.monotonic() - start, lines[0] if lines else ""


def seek(fault: Fault) -> tuple[Fault, bool, float, str]:
    """Plant a fault in a copy of its own, and run its tests."""
    with tempfile.TemporaryDirectory(suffix=".planted") as folder:
        tree = copy(Path(folder))
        fault.plant(tree)
        code, seconds, said = run(tree, fault.tests)
    # 1: a test failed. Anything else (nothing was collected, pytest itself failed) is no test's merit.
    return fault, code == 1, seconds, said


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 if a fault is not found, 2 if the tests fail without one."""
    parser = argparse.ArgumentParser(description="Plant faults one at a time and see whether the tests find them.")
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="faults whose name holds one of these")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="faults at a time (default 1)")
    parser.add_argument("--no-baseline", action="store_true", help="take it that the tests pass without a fault")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there")
    options = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if not options.only or any(text in fault.name for text in options.only)]
    if not options.no_baseline:
        names = dict.fromkeys(name for fault in faults for name in fault.tests.split())
        with tempfile.TemporaryDirectory() as folder:
            code, seconds, said = run(copy(Path(folder)), " ".join(names))
        print(f"without a fault: {said} ({seconds:.0f} s)", flush=True)
        if code:
            return 2
    rows = ["| fault | found by | seconds |", "|---|---|---:|"]
    missed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for fault, found, seconds, said in pool.map(seek, faults):
            test = said.removeprefix("FAILED ").split(" - ")[0].replace("|", "\\|")
            print(f"{'found ' if found else 'MISSED'} {seconds:4.0f} s  {fault.name}: {test}", flush=True)
            rows.append(f"| {fault.name} | {f'`{test}`' if found else '**not found**'} | {seconds:.0f} |")
            missed += not found
    print(f"{len(faults) - missed} of {len(faults)} faults found")
    if options.markdown:
        options.markdown.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
