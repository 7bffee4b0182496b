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

from .. import records
from ..data import extract
from ..files import reading, replacing, sha256


def kept_folder(study: Path) -> Path:
    """Return the folder next to a study file that contains its kept runs."""
    return study.parent / study.stem


def archive_file(kept: Path) -> Path:
    """Return the path of the archive that belongs to a study's folder."""
    return kept.with_name(f"{kept.name}.tar.xz")


def run_folders(kept: Path) -> list[Path]:
    return [note.parent for note in sorted(kept.glob("*/study.json")) if note.parent.suffix != ".partial"]


def runs_folder(kept: Path) -> Path:
    """Return the folder that contains a study's kept runs: its own folder if it contains runs or has no archive,
    otherwise the cache into which the archive is unpacked.

    Raises: ValueError naming the archive if it is damaged or its SHA-256 differs from results.json, or the study's
    folder if it lacks runs of the archive; OSError.
    """
    archive, own = archive_file(kept), run_folders(kept)
    if not archive.is_file():
        return kept
    digest = sha256(archive)
    named = records.read_if_there(kept / "results.json", dict) or {}
    if not own and named.get("archive") not in (None, digest):
        raise ValueError(f"{archive}: SHA-256 {digest}: must be {named['archive']}, as in {kept / 'results.json'}")
    unpacked = _cached(archive, kept.name, digest)
    if not own:
        return unpacked
    if lacking := sorted({run.name for run in run_folders(unpacked)} - {run.name for run in own}):
        raise ValueError(
            f"{kept}: {len(lacking)} of the runs in {archive.name} are missing, such as {lacking[0]}; "
            "`fairseq-resid study --unpack` restores them; if you removed them, also remove the archive"
        )
    return kept


def _cached(archive: Path, name: str, digest: str) -> Path:
    """Return the folder in the cache into which an archive is unpacked."""
    cache = Path(os.environ.get("FAIRSEQ_RESID_CACHE") or Path.home() / ".cache" / "fairseq_resid") / "studies"
    folder = cache / f"{name}-{digest[:16]}"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=cache))
        try:
            extract.unpack(archive, partial)
            os.rename(partial, folder)
        except OSError:
            if not folder.is_dir():  # another process may have been faster
                raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return folder


def pack(kept: Path) -> Path:
    """Pack a study's run folders into the archive, remove them and return its path. Equal runs give equal bytes.

    FILE.gz is stored uncompressed, as FILE, because similar files of several runs compress better together.
    If results.json states the SHA-256 of an earlier archive, it is updated before the folders are removed.
    Raises: OSError or ValueError naming the file that is unreadable, or the archive that cannot be unpacked. In that
    case the folders are kept.
    """
    with replacing(archive_file(kept)) as partial:
        with tarfile.open(partial, "w:xz", format=tarfile.PAX_FORMAT, preset=9) as tar:
            for folder in run_folders(kept):
                for file in filter(Path.is_file, sorted(folder.rglob("*"))):
                    plain = file.with_suffix("") if file.suffix == ".gz" else file
                    with reading(plain) as lines:
                        content = b"".join(lines)
                    member = tarfile.TarInfo(plain.relative_to(kept).as_posix())
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
        # Before the folders are removed, refuse what unpacking would refuse.
        with tempfile.TemporaryDirectory(dir=kept.parent) as unpacked:
            extract.unpack(partial, Path(unpacked))
    results = kept / "results.json"
    if (known := records.read_if_there(results, dict)) and known.get("archive"):
        records.write(results, {**known, "archive": sha256(archive_file(kept))})
    for folder in run_folders(kept):
        shutil.rmtree(folder)
    return archive_file(kept)


def unpack(kept: Path) -> int:
    """Copy the runs of the archive that the study's folder lacks into it; return the number of runs there.

    Raises: as `runs_folder`; FileNotFoundError naming the missing archive.
    """
    archive, own = archive_file(kept), {folder.name for folder in run_folders(kept)}
    if not archive.is_file():
        raise FileNotFoundError(f"{archive}: no such file")
    unpacked = runs_folder(kept) if not own else _cached(archive, kept.name, sha256(archive))
    for folder in run_folders(unpacked):
        if folder.name not in own:
            with replacing(kept / folder.name) as partial:
                shutil.rmtree(partial, ignore_errors=True)  # from an interrupted copy
                shutil.copytree(folder, partial)
    return len(run_folders(kept))
