"""The archive of a complete study: NAME.tar.xz next to the plan contains its kept run folders and replaces NAME/RUN.

Readers unpack it once into a cache folder named after the archive's SHA-256, and read the run folders there. The cache
is ~/.cache/fairseq_resid, or the folder in FAIRSEQ_RESID_CACHE.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from ..data import extract
from ..files import reading, replacing, sha256


def kept_folder(study: Path) -> Path:
    """Return the folder next to a study file that contains its kept runs."""
    return study.parent / study.stem


def archive_file(kept: Path) -> Path:
    return kept.with_name(f"{kept.name}.tar.xz")


def run_folders(kept: Path) -> list[Path]:
    return [note.parent for note in sorted(kept.glob("*/study.json")) if note.parent.suffix != ".partial"]


def runs_folder(kept: Path) -> Path:
    """Return the folder that contains a study's kept runs: its own folder if it contains runs or has no archive,
    otherwise the cache into which the archive is unpacked.

    Raises: ValueError naming the archive if it is damaged, or the study's folder if it lacks runs of the archive.
    """
    if not archive_file(kept).is_file():
        return kept
    cached = _cached(archive_file(kept))
    own, packed = ({folder.name for folder in run_folders(where)} for where in (kept, cached))
    if own and (lacking := packed - own):
        raise ValueError(
            f"{kept}: {len(lacking)} of the runs in {archive_file(kept).name} are missing, such as {min(lacking)}; "
            "`fairseq-resid study --unpack` restores them; if you removed them, also remove the archive"
        )
    return kept if own else cached


def _cached(archive: Path) -> Path:
    cache = Path(os.environ.get("FAIRSEQ_RESID_CACHE") or Path.home() / ".cache" / "fairseq_resid") / "studies"
    folder = cache / f"{archive.name.removesuffix('.tar.xz')}-{sha256(archive)[:16]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=cache) as partial:
            extract.unpack(archive, Path(partial, "runs"))
            if not folder.is_dir():  # another process may have been faster
                os.rename(Path(partial, "runs"), folder)
    return folder


def pack(kept: Path) -> Path:
    """Pack a study's run folders into the archive, remove them and return its path. Equal runs give equal bytes.

    FILE.gz is stored uncompressed, as FILE, because similar files of several runs compress better together.
    Raises: OSError or ValueError naming the file that cannot be read or unpacked again; the folders are then kept.
    """
    with replacing(archive_file(kept)) as partial, tempfile.TemporaryDirectory(dir=kept.parent) as again:
        with tarfile.open(partial, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
            for file in (file for folder in run_folders(kept) for file in sorted(folder.rglob("*")) if file.is_file()):
                plain = file.with_suffix("") if file.suffix == ".gz" else file
                with reading(plain) as lines:
                    content = b"".join(lines)
                member = tarfile.TarInfo(plain.relative_to(kept).as_posix())
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        extract.unpack(partial, Path(again))
    for folder in run_folders(kept):
        shutil.rmtree(folder)
    return archive_file(kept)


def unpack(kept: Path) -> int:
    """Copy the runs of the archive that the study's folder lacks into it; return the number of runs there."""
    for folder in run_folders(_cached(archive_file(kept))):
        if not (kept / folder.name).exists():
            with replacing(kept / folder.name) as partial:
                shutil.rmtree(partial, ignore_errors=True)  # from an interrupted copy
                shutil.copytree(folder, partial)
    return len(run_folders(kept))
