"""Faults in fairseq_resid/compat, which plant_faults.py plants."""

from __future__ import annotations

from faults.fault import Fault

FAULTS = [
    Fault(
        "the last batch is dropped",
        "fairseq_resid/compat/data.py",
        "        if kept < len(indices) and",
        "        if kept > len(indices) and",
        "compat/test_last_batch.py",
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
        "compat/test_code_in_configs.py",
    ),
    Fault(
        "stopping: a signal does not save",
        "fairseq_resid/compat/stopping.py",
        "            checkpoint_utils.save_checkpoint(cfg.checkpoint, trainer, epoch_itr, losses[0])",
        "            pass",
        "training/test_signals.py",
    ),
    Fault(
        "stopping: terminated twice, a training ends at once",
        "fairseq_resid/compat/stopping.py",
        "if number == _Stop.asked == signal.SIGINT:",
        "if number == _Stop.asked:",
        "training/test_signals.py",
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
        "training/test_lost_processes.py",
    ),
    Fault(
        "full disks: the old checkpoint is written over",
        "fairseq_resid/compat/writing.py",
        'shutil.copyfile(src_path, f"{dst_path}.tmp")',
        'shutil.copyfile(src_path, dst_path); shutil.copyfile(src_path, f"{dst_path}.tmp")',
        "training/test_kills.py",
    ),
]
