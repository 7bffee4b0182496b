"""The benchmarks run here at sizes that are too small to measure speed."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support import mirror
from support.engines import need
from support.scripts import imported
from support.shells import shell

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
COMPARED = ["transformer", "post_ln", "rskip_ln-1", "rskip_ln-2", "rskip_ln-3", "sas"]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a benchmark in this process and return its output: `benchmark("depth", *flags)`."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # its scripts import each other
    monkeypatch.setattr(logging.root.manager, "disable", logging.NOTSET)  # they disable fairseq's log

    def run(name: str, *flags: object) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, flags)])
        capsys.readouterr()
        with warnings.catch_warnings():
            imported(ROOT / "benchmarks" / f"{name}.py").main()
        return capsys.readouterr().out

    return run


def test_data_prep_benchmark_measures_both_tools(benchmark: Callable[..., str], tmp_path: Path) -> None:
    for side, text in zip(("en", "de"), mirror.sides(mirror.pairs(300, ("en", "de"))), strict=True):
        (tmp_path / f"text.{side}").write_text(text)
    flags = ["--text", tmp_path / "text", "--source", "en", "--target", "de", "--rounds", 1, "--only", "extract"]
    benchmark("data_prep", *flags, "--json", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["pairs"] == 300 and set(found["steps"]) == {"extract: ours", "extract: tar"}
    assert all(row["pairs_per_second"] > 0 for row in found["steps"].values())


def test_depth_benchmark_reuses_its_results(
    benchmark: Callable[..., str], tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The benchmark reports whether a structure trains, and a second call repeats no run."""
    flags = [corpus, "--layers", 4, 1, "--updates", 2, "--lr", 1e-3]
    flags += ["--structures", "post_ln", "xskip", "--json", tmp_path / "depth.json"]
    first, again = (benchmark("depth", *flags) for _ in range(2))
    rows = json.loads((tmp_path / "depth.json").read_text())["rows"]
    assert first == again and len(first.splitlines()) == 3
    assert [row["structure"] for row in rows] == ["post_ln", "xskip"]
    assert rows[0]["is_finite"] and 2 < rows[0]["valid_nll"] < 12
    with pytest.raises(SystemExit):
        benchmark("depth", *flags, "--updates", 3)
    assert "contains results for" in capsys.readouterr().err


@need("onnx")
@need("ctranslate2")
def test_serving_benchmark_compares_every_engine_with_fairseq(benchmark: Callable[..., str], tmp_path: Path) -> None:
    flags = ["--size", "tiny", "--threads", 1, "--batch-sizes", 1, 2, "--sentences", 4, "--length", 5, "--rounds", 1]
    output = benchmark("serving", *flags, "--json", tmp_path / "out.json")
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    variants = ["fairseq", "ctranslate2", "ctranslate2 int8", "onnx", "onnx int8"]
    assert [row["variant"] for row in rows] == 2 * variants
    assert [row["tokens"] for row in rows] == 5 * [6] + 5 * [24]  # one or four sentences, each with 5 tokens and </s>
    assert all(row["tokens_per_second"]["median"] > 0 and row["memory"] > 1 << 20 for row in rows)
    assert output.count("\nonnx int8 ") == 2


# --- residual structures -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "compile"])
def test_training_and_decoding_benchmarks_compare_every_structure_with_stock(
    benchmark: Callable[..., str], tmp_path: Path, corpus: Path, backend: str
) -> None:
    """The compiled models are those of random sentences; the others read a data folder. Only training compiles."""
    shared = ["--size", "tiny", "--max-tokens", 512, "--rounds", 2, "--residual-backend", backend]
    shared += ["--data", corpus] if backend == "eager" else ["--structures", "post_ln"]
    found = {}
    programs = {"training": [], **({"decoding": ["--length", 4]} if backend == "eager" else {})}
    for name, flags in programs.items():
        files = ["--json", tmp_path / f"{name}.json", "--plot", tmp_path / f"{name}.png"]
        benchmark(name, *shared, *flags, *files)
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        found[name] = json.loads((tmp_path / f"{name}.json").read_text())
        structures = found[name]["structures"]
        assert list(structures) == (["transformer", "post_ln"] if backend == "compile" else COMPARED)
        assert all(figures["to_stock"]["median"] > 0 for figures in structures.values())
        assert structures["transformer"]["to_stock"] == dict.fromkeys(("median", "q1", "q3", "min", "max"), 1.0)
    if backend == "eager":
        return  # the numbers below are those of random sentences
    fairseq = found["training"]["structures"]["post_ln"]
    chunked = fairseq["chunked"]
    assert chunked["to_stock"]["median"] > 0 and chunked["to_fairseq"]["median"] > 0
    tokens, words, channels = found["training"]["target_tokens_per_batch"], 200, 64
    assert fairseq["saved_bytes_of_the_loss"] >= 4 * tokens * words
    gradients = 4 * (tokens + words) * channels  # of the features and of the output weights
    assert gradients <= chunked["saved_bytes_of_the_loss"] < gradients + 1_000
    features = [row["saved_bytes"] - row["saved_bytes_of_the_loss"] for row in (fairseq, chunked)]
    assert features[0] == features[1]


def test_site_benchmark_compares_eager_and_compiled_sites(tmp_path: Path) -> None:
    """Rows of other structures in the file are kept."""
    file = tmp_path / "sites.json"
    kept = json.loads((ROOT / "benchmarks" / "results" / "cpu" / "sites.json").read_text())["mhc"]
    file.write_text(json.dumps({"mhc": kept}))
    flags = ["--positions", 64, "--channels", 16, "--rounds", 2, "--device", "cpu", "--json", file]
    command = [sys.executable, ROOT / "benchmarks" / "sites.py", *flags, "--structures", "orthogonal"]
    output = shell(*command, cwd=tmp_path)
    rows = json.loads(file.read_text())
    assert rows["mhc"] == kept and all(output.count(f"\n| `{name}` | ") == 1 for name in ("mhc", "orthogonal"))
    row = rows["orthogonal"]
    assert row["speed"]["median"] > 0 and row["first_call_seconds"] > 0 and row["graphs"] >= 1
    assert row["machine"]["torch"] == torch.__version__.split("+")[0] and row["channels"] == 16
    assert max(row["difference"].values()) < 1e-4
    # x, F and, at each position, F·x, x·x and α
    assert row["saved"]["eager"] == pytest.approx(2 + 3 / 16, abs=0.01)
    assert 2 <= row["saved"]["compile"] < row["saved"]["eager"]


def test_readme_shows_the_measured_speeds() -> None:
    shown = (ROOT / "benchmarks" / "README.md").read_text().splitlines()
    for file in (ROOT / "benchmarks" / "results" / "cpu").glob("[td]*.json"):
        found = json.loads(file.read_text())
        cells = [f"{found['structures'][name]['to_stock']['median']:.3f}" for name in COMPARED]
        assert f"| {file.stem} | {' | '.join(cells)} |" in shown


def test_page_shows_both_criteria_as_measured() -> None:
    folder = ROOT / "benchmarks" / "results" / "cpu-criterion"
    results = {file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")}
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for size in ("multi30k-small", "multi30k-published"):
        default, kept = (results[f"training-{size}{suffix}"]["structures"] for suffix in ("", "-kept-memory"))
        for name in default:
            rows = [row for structures in (default, kept) for row in (structures[name], structures[name]["chunked"])]
            cells = [f"{row['to_stock']['median']:.2f}" for row in rows]
            cells += [f"{row['saved_bytes'] / 2**20:.0f}" for row in rows[:2]]
            assert f"| `{name}` | {' | '.join(cells)} |" in page
