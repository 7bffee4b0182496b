"""Write the hashes of the pinned packages, as the package index provides them for this Python.

    .venv/bin/python constraints/write_hashes.py

This writes constraints/hashes/PINS-PLATFORM.txt with every pin except torch and its companions, whose build depends on
the index. The file lists packages only for this Python and this platform. `pip install --require-hashes --no-deps -r`
refuses any other package.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHOSEN_BY_INDEX = ("torch", "torchaudio", "triton")


def target() -> tuple[Path, Path]:
    """Return the file of pins for this Python, and the file of their hashes for this platform."""
    pins = HERE / ("fairseq-0.12.2.txt" if sys.version_info < (3, 11) else "fairseq-fixed.txt")
    platform = re.sub(r"[^a-z0-9]+", "_", sysconfig.get_platform())
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    return pins, HERE / "hashes" / f"{pins.stem}-py{version}-{platform}.txt"


def main() -> int:
    pins, file = target()
    lines = [line for line in pins.read_text(encoding="utf-8").splitlines() if "==" in line and line[0] != "#"]
    wanted = [line for line in lines if line.split("==")[0] not in CHOSEN_BY_INDEX]
    with tempfile.TemporaryDirectory() as folder:
        asked, report = Path(folder) / "asked.txt", Path(folder) / "report.json"
        asked.write_text("\n".join(wanted), encoding="utf-8")
        pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        subprocess.run([*pip, "--no-build-isolation", "--report", report, "-r", asked], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    made = {re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(): item for item in found}
    rows = []
    # pip skips pins whose marker excludes this Python.
    for name in dict.fromkeys(line.split("==")[0] for line in wanted if line.split("==")[0].lower() in made):
        item = made[name.lower()]
        digest = item["download_info"]["archive_info"]["hashes"]["sha256"]
        rows.append(f"{name}=={item['metadata']['version']} --hash=sha256:{digest}\n")
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"# Made by constraints/{Path(__file__).name} from {pins.name}.\n{''.join(rows)}", encoding="utf-8")
    print(f"{file}: {len(rows)} of {len({line.split('==')[0] for line in lines})} pins")
    return 0


if __name__ == "__main__":
    sys.exit(main())
