"""Faults that plant_faults.py plants in fairseq_resid/fairseq_patches."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "the last batch is dropped",
        "fairseq_resid/fairseq_patches/data.py",
        "        if kept < len(indices) and",
        "        if kept > len(indices) and",
        "fairseq_patches/test_last_batch.py",
    ),
    Fault(
        "checkpoints: names in a file are imported",
        "fairseq_resid/fairseq_patches/reader.py",
        '        raise Refused(f"contains {shown(full)[1:-1]}',
        '        return super().find_class(module, name)\n        raise Refused(f"contains {shown(full)[1:-1]}',
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a tensor may have more elements than its storage",
        "fairseq_resid/fairseq_patches/reader.py",
        "if count and not (count <= held and last < held):",
        "if count and not last < held:",
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: records may be larger than the file",
        "fairseq_resid/fairseq_patches/reader.py",
        "for member in members) <= size,",
        "for member in members) >= 0,",
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: traversing shared lists is not limited",
        "fairseq_resid/fairseq_patches/reader.py",
        "left = 2 * program.reads",
        "left = 1 << 62",
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: any object may be a dict key",
        "fairseq_resid/fairseq_patches/reader.py",
        'require(is_plain, f"a dict',
        'require(is_plain or True, f"a dict',
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a named pipe is opened",
        "fairseq_resid/fairseq_patches/loading.py",
        "if os.path.lexists(path) and not os.path.isfile(path):",
        "if os.path.isdir(path):",
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: NaN is accepted",
        "fairseq_resid/fairseq_patches/loading.py",
        "if not tensor.sum(dtype=torch.float64).isfinite():",
        "if tensor.sum(dtype=torch.float64) is None:",
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a config may read environment variables",
        "fairseq_resid/fairseq_patches/loading.py",
        "if any(isinstance(text, str) and RESOLVER",
        "if any(isinstance(text, bytes) and RESOLVER",
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a config may have any number of positions",
        "fairseq_resid/fairseq_patches/building.py",
        "        except UserError:\n            raise\n",
        "",
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: a config may have any number of layers",
        "fairseq_resid/fairseq_patches/building.py",
        "hook = register_module_parameter_registration_hook(count)",
        "hook = register_module_parameter_registration_hook(lambda *_: None)",
        "fairseq_patches/test_hostile_checkpoints.py",
    ),
    Fault(
        "checkpoints: code in a config is accepted",
        "fairseq_resid/fairseq_patches/loading.py",
        "    refuse_code(state, path)\n    forget_files(state, path)",
        "    forget_files(state, path)",
        "fairseq_patches/test_code_in_configs.py",
    ),
    Fault(
        "stopping: a signal does not save a checkpoint",
        "fairseq_resid/fairseq_patches/stopping.py",
        "            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, losses[0])",
        "            pass",
        "runs/test_signals.py",
    ),
    Fault(
        "stopping: a second SIGTERM stops at once",
        "fairseq_resid/fairseq_patches/stopping.py",
        "if number == _Stop.received == signal.SIGINT:",
        "if number == _Stop.received:",
        "runs/test_signals.py",
    ),
    Fault(
        "other devices: the position in the epoch ignores the number of processes",
        "fairseq_resid/fairseq_patches/data.py",
        "share = done * there[0] / there[1]",
        "share = done * here[0] / there[1]",
        "runs/test_distributed_and_resume.py",
    ),
    Fault(
        "processes: different settings are not detected",
        "fairseq_resid/fairseq_patches/processes.py",
        "if there != first]",
        "if there is first is None]",
        "runs/test_lost_processes.py",
    ),
    Fault(
        "full disks: the old checkpoint is overwritten",
        "fairseq_resid/fairseq_patches/writing.py",
        'shutil.copyfile(src_path, f"{dst_path}.tmp")',
        'shutil.copyfile(src_path, dst_path); shutil.copyfile(src_path, f"{dst_path}.tmp")',
        "runs/test_kills.py",
    ),
    Fault(
        "resuming: the structure of the checkpoint is not compared",
        "fairseq_resid/fairseq_patches/loading.py",
        "            if differing is None:\n",
        "            if differing is None or True:\n",
        "fairseq_patches/test_other_structures.py",
    ),
]
