"""The benchmarks run here at sizes that are too small to measure speed."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support import mirror
from support.engines import need

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]


def test_data_prep_benchmark_measures_both_tools(tmp_path: Path) -> None:
    for side, text in zip(("en", "de"), mirror.sides(mirror.pairs(300, ("en", "de"))), strict=True):
        (tmp_path / f"text.{side}").write_text(text)
    flags = ["--text", tmp_path / "text", "--source", "en", "--target", "de", "--rounds", 1, "--only", "extract"]
    command = [sys.executable, ROOT / "benchmarks" / "data_prep.py", *flags, "--json", tmp_path / "out.json"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["pairs"] == 300 and set(found["steps"]) == {"extract: ours", "extract: tar"}
    assert all(row["pairs_per_second"] > 0 for row in found["steps"].values())


def test_depth_benchmark_reuses_its_results(tmp_path: Path, corpus: Path) -> None:
    """The benchmark reports whether a structure trains, and a second call repeats no run."""
    flags = [corpus, "--layers", 4, 1, "--updates", 2, "--lr", 1e-3]
    flags += ["--structures", "post_ln", "xskip", "--json", tmp_path / "depth.json"]
    command = list(map(str, [sys.executable, ROOT / "benchmarks" / "depth.py", *flags]))
    first, again = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2))
    rows = json.loads((tmp_path / "depth.json").read_text())["rows"]
    assert first == again and len(first.splitlines()) == 3
    assert [row["structure"] for row in rows] == ["post_ln", "xskip"]
    assert rows[0]["is_finite"] and 2 < rows[0]["valid_nll"] < 12
    other = subprocess.run([*command, "--updates", "3"], capture_output=True, text=True)
    assert other.returncode == 2 and "contains results for" in other.stderr


@need("onnx")
@need("ctranslate2")
def test_serving_benchmark_compares_every_engine_with_fairseq(tmp_path: Path) -> None:
    flags = ["--size", "tiny", "--threads", 1, "--batch-sizes", 1, 2, "--sentences", 4, "--length", 5, "--rounds", 1]
    command = [sys.executable, ROOT / "benchmarks" / "serving.py", *flags, "--json", tmp_path / "out.json"]
    run = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    rows = json.loads((tmp_path / "out.json").read_text())["rows"]
    variants = ["fairseq", "ctranslate2", "ctranslate2 int8", "onnx", "onnx int8"]
    assert [row["variant"] for row in rows] == 2 * variants
    assert [row["tokens"] for row in rows] == 5 * [6] + 5 * [24]  # one or four sentences, each with 5 tokens and </s>
    assert all(row["tokens_per_second"]["median"] > 0 and row["memory"] > 1 << 20 for row in rows)
    assert run.stdout.count("\nonnx int8 ") == 2


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="triton has no build for this system")
def test_first_gpu_script_rehearses_every_step_on_a_cpu(tmp_path: Path, corpus: Path) -> None:
    """The kernels run in Triton's interpreter, and a second call has nothing left to do."""
    flags = ["--rehearse", "--minutes", 30, "--out", tmp_path, "--data", corpus]
    command = list(map(str, [sys.executable, ROOT / "benchmarks" / "first_gpu.py", *flags]))
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    first = subprocess.run(command, capture_output=True, text=True, env=environment)
    steps = json.loads((tmp_path / "steps.json").read_text())
    logs = {name: (tmp_path / f"{name}.log").read_text()[-2000:] for name, step in steps.items()}
    assert {name: step["outcome"] for name, step in steps.items()} == dict.fromkeys(steps, "pass"), logs
    assert len(steps) == 7 and first.returncode == 0, first.stderr[-3000:]
    table = (tmp_path / "first_gpu.md").read_text()
    assert "| resume-and-stop | pass |" in table and "| rskip_ln, saved beyond x, u | <= 1.05 |" in table
    assert "Loaded checkpoint" in (tmp_path / "runs" / "stopped" / "train.log").read_text()
    again = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert again.stdout == f"nothing is left\n{table}\n" and again.returncode == 0


# --- residual structures -------------------------------------------------------------------------------------------


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a benchmark by name, with the import path of `python benchmarks/NAME.py`."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    for file in (ROOT / "benchmarks").glob("*.py"):  # some test folders have the same names
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return importlib.import_module


def spread(median: float) -> dict[str, float]:
    return {"median": median, "q1": median - 0.01, "q3": median + 0.01, "min": median - 0.02, "max": median + 0.02}


def measured(gpu: str | None = None, **found: Any) -> dict[str, Any]:
    """Return the parts of a benchmark's output that the goals read, with made-up numbers."""
    machine = {"gpu": gpu, "cpu": "CPU", "cores": 2, "threads": 1, "load_average": 0.1, "python": "3.11", "torch": "2"}
    return {"machine": machine, "command": "python benchmarks/made_up.py", **found}


def translated(gpu: str | None = None, size: str = "base", **ratios: float) -> dict[str, Any]:
    structures = {name.replace("_ln", "_ln-2"): {"to_stock": spread(ratio)} for name, ratio in ratios.items()}
    return measured(gpu, size=size, precision="bf16", data="random", clock="wall clock", structures=structures)


def row(site: str, passed: str, channels: int = 512, **figures: Any) -> dict[str, Any]:
    where = {"rows": 16384, "channels": channels, "dtype": "bf16"}
    return {"site": site, "by": "triton", "pass": passed, **where, **figures}


def verdicts(goals: ModuleType, results: dict[str, Any]) -> dict[str, str]:
    return {goal.what: goals.judge(goal, results)["verdict"] for goal in goals.GOALS}


def test_every_benchmark_runs(tmp_path: Path, corpus: Path) -> None:
    flags = ["--quick", "--out", tmp_path, "--data", corpus]
    command = [sys.executable, ROOT / "benchmarks" / "goals.py", *flags]
    shown = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr[-3000:]
    names = ["ops", "training-tiny", "decoding-tiny", "training-tiny-data", "decoding-tiny-data"]
    for name in names:
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in names}
    structures = ["transformer", "post_ln", "rskip_ln-1", "rskip_ln-2", "rskip_ln-3", "sas"]
    for name in names[1:]:
        assert list(found[name]["structures"]) == structures
        assert all(figures["to_stock"]["median"] > 0 for figures in found[name]["structures"].values())
        assert found[name]["structures"]["transformer"]["to_stock"] == dict.fromkeys(spread(1), 1.0)
    for name in ("training-tiny", "training-tiny-data"):
        chunked = found[name]["structures"]["sas"]["chunked"]
        assert chunked["to_stock"]["median"] > 0 and chunked["to_fairseq"]["median"] > 0
    tokens, words, channels = found["training-tiny"]["target_tokens_per_batch"], 200, 64
    fairseq = found["training-tiny"]["structures"]["sas"]
    chunked = fairseq["chunked"]
    assert fairseq["saved_bytes_of_the_loss"] >= 4 * tokens * words
    gradients = 4 * (tokens + words) * channels  # of the features and of the output weights
    assert gradients <= chunked["saved_bytes_of_the_loss"] < gradients + 1_000
    features = [row["saved_bytes"] - row["saved_bytes_of_the_loss"] for row in (fairseq, chunked)]
    assert features[0] == features[1]
    assert {figures["site"] for figures in found["ops"]["timings"]} == {*structures[2:], "wskip_ln", "res_post_norm"}
    saved = {(figures["site"], figures["by"]): figures["saved_u"] for figures in found["ops"]["saved"]}
    assert saved["rskip_ln-3", "eager"] - saved["rskip_ln-2", "eager"] == pytest.approx(1, abs=0.1)  # s_3 of each row
    rows = json.loads((tmp_path / "goals.json").read_text())
    for line in rows:
        assert f"| {line['what']} | {line['goal']} | {line['measured']} | {line['verdict']} |" in shown.stdout
    judged = next(figures for figures in rows if figures["what"] == "training on a CPU, sas / stock")
    assert set(judged["figures"]) == {"tiny, fp32, random, wall clock", "tiny, fp32, data, wall clock"}


def test_goals_on_a_gpu_are_judged(load: Any) -> None:
    goals = load("goals")
    timings = [
        row("rskip_ln-2", "forward+backward", speed_to={"eager": spread(2.6), "torch.compile": spread(1.1)}),
        row("rskip_ln-2", "forward+backward", 1024, speed_to={"eager": spread(2.4), "torch.compile": spread(1.0)}),
        row(
            "rskip_ln-3",
            "forward+backward",
            speed_to={"eager": spread(3.5)},
            **{"time_to_rskip_ln-1": spread(1.2)},
        ),
        row("rskip_ln-2", "forward", copy_share=spread(0.7)),
        row("rskip_ln-3", "backward", 1024, copy_share=spread(0.59)),
    ]
    host = [
        {"site": "rskip_ln-1", "by": "triton", "channels": 512, "time_to_eager_rskip_ln-1": spread(0.9)},
        {"site": "sas", "by": "triton", "channels": 512, "time_to_eager_rskip_ln-1": spread(3.0)},
    ]
    saved = [
        {"site": "rskip_ln-3", "by": "triton", "channels": 512, "saved_u": 1.02},
        {"site": "rskip_ln-3", "by": "eager", "channels": 512, "saved_u": 4.0},
        {"site": "sas", "by": "triton", "channels": 512, "saved_u": 3.2},
    ]
    found = verdicts(
        goals,
        {
            "ops": measured("GPU", timings=timings, host=host, saved=saved),
            "training-base": translated("GPU", rskip_ln=1.01, sas=0.74),
            "training-big": translated("GPU", "big", rskip_ln=1.02, sas=0.71),
        },
    )
    assert found == {
        "rskip_ln λ=2, fused / eager, forward + backward": "fail",  # the worse of two shapes
        "rskip_ln λ=3, fused / eager, forward + backward": "pass",
        "rskip_ln, fused / torch.compile": "pass",
        "sas, fused / torch.compile": "not measured",
        "rskip_ln forward, share of copy bandwidth, C = 512": "pass",
        "rskip_ln forward, share of copy bandwidth, C = 1024": "not measured",
        "rskip_ln backward, share of copy bandwidth, C = 512": "not measured",
        "rskip_ln backward, share of copy bandwidth, C = 1024": "fail",
        "rskip_ln, fused, time of λ=3 / λ=1": "fail",
        "rskip_ln, host time of a call, fused / eager λ=1": "pass",
        "rskip_ln, saved beyond x, u": "pass",
        "sas, saved beyond x, u": "fail",
        "training on a GPU, rskip_ln / stock": "pass",
        "training on a GPU, sas / stock, Base": "fail",
        "training on a GPU, sas / stock, Big": "pass",
        "decoding on a GPU, beam 4, rskip_ln / stock": "not measured",
        "decoding on a GPU, beam 4, sas / stock": "not measured",
        "training on a CPU, rskip_ln / stock": "not measured: ran on a GPU",
        "training on a CPU, sas / stock": "not measured: ran on a GPU",
        "decoding on a CPU, beam 4, rskip_ln / stock": "not measured: ran on a GPU",
        "decoding on a CPU, beam 4, sas / stock": "not measured: ran on a GPU",
    }


def test_goals_on_a_cpu_are_judged(load: Any) -> None:
    goals = load("goals")
    found = verdicts(
        goals,
        {
            "training-small": translated(rskip_ln=0.95, sas=0.61),
            "training-small-corpus": translated(rskip_ln=0.89, sas=0.60),
            "decoding-small": translated(rskip_ln=0.98, sas=0.70),
        },
    )
    measured_here = {name.removesuffix(" / stock"): verdict for name, verdict in found.items() if "CPU" in name}
    assert measured_here == {
        "training on a CPU, rskip_ln": "fail",
        "training on a CPU, sas": "pass",
        "decoding on a CPU, beam 4, rskip_ln": "pass",
        "decoding on a CPU, beam 4, sas": "fail",
    }
    others = {verdict for name, verdict in found.items() if "CPU" not in name}
    assert others == {"not measured: no GPU", "not measured"}


def test_worst_figure_is_shown_with_its_measurement(load: Any) -> None:
    goals = load("goals")
    goal = next(goal for goal in goals.GOALS if goal.what == "training on a CPU, sas / stock")
    results = {"training-small": translated(size="small", sas=0.7), "training-base": translated(sas=0.5994)}
    shown = goals.judge(goal, results)
    assert (shown["measured"], shown["verdict"]) == ("0.599 [0.589, 0.609] (base, bf16, random, wall clock)", "fail")


def test_readme_shows_the_measured_results(load: Any) -> None:
    goals = load("goals")
    results = goals.read(ROOT / "benchmarks" / "results" / "cpu")
    shown = (ROOT / "benchmarks" / "README.md").read_text().splitlines()
    for line in goals.table([goals.judge(goal, results) for goal in goals.GOALS], results).splitlines():
        assert line in shown


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


@pytest.mark.parametrize(
    "command, error",
    [
        ("ops --rows 0", "--rows: 0: must be an integer of at least 1"),
        ("ops --implementations numpy", "--implementations: invalid choice: 'numpy'"),
        ("ops --implementations liger --device cpu", "--implementations liger: requires a GPU"),
        ("ops --json nowhere/ops.json", "--json nowhere/ops.json: no such folder"),
        ("training --plot plot.jpeg", "--plot plot.jpeg: must end in .png, .svg or .pdf"),
        ("training --structures transformer_sas", "--structures: invalid choice: 'transformer_sas'"),
        ("training --criteria cross_entropy", "--criteria: invalid choice: 'cross_entropy'"),
        ("training --precision fp16 --device cpu", "--precision fp16: not supported on a CPU"),
        ("training --data {empty}", "--data {empty}: not a binarised data folder"),
        ("training --clock processor --device cuda", "--device cuda: torch finds no GPU"),
        ("decoding --rounds many", "--rounds: many: must be an integer of at least 1"),
        ("decoding --data {empty}/none", "--data {empty}/none: not a binarised data folder"),
        ("goals --data {empty}", "--data {empty}: not a binarised data folder"),
        ("goals --only ops training --out {empty}", "--only training: choose from ops, training-small, training-base,"),
        ("goals --quick", "--quick: requires --out FOLDER"),
        ("goals --judge {empty}", "--judge {empty}: contains no ops.json"),
    ],
)
def test_bad_input_is_refused(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, command: str, error: str
) -> None:
    name, *flags = shlex.split(command.format(empty=tmp_path))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *flags])
    with pytest.raises(SystemExit) as refused:
        load(name).main()
    assert refused.value.code not in (0, None)
    assert error.format(empty=tmp_path) in capsys.readouterr().err + str(refused.value.code)


def test_first_gpu_script_continues_after_failures(
    load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    first_gpu = load("first_gpu")
    python = shlex.quote(sys.executable)
    made = [
        first_gpu.Step("wrong", f"{python} -c 1/0"),
        first_gpu.Step("slow", f"{python} -c 'import time; time.sleep(60)'", 0.01),
        first_gpu.Step("right", f"{python} -c 1"),
    ]
    monkeypatch.setattr(first_gpu, "steps", lambda *_: made)
    monkeypatch.setattr(sys, "argv", ["first_gpu.py", "--out", str(tmp_path)])
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            first_gpu.main()
        assert ended.value.code
        table = (tmp_path / "first_gpu.md").read_text()
        assert "| wrong | failed (1) |" in table and "| right | pass |" in table
        assert "| slow | out of time (0.01 min) |" in table
    assert "ZeroDivisionError" in (tmp_path / "wrong.log").read_text()
    monkeypatch.setattr(sys, "argv", ["first_gpu.py", "--out", str(tmp_path), "--retry", "--minutes", "1"])
    made[:2] = [first_gpu.Step("wrong", f"{python} -c 1", 0.1), first_gpu.Step("slow", f"{python} -c 1", 9)]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        first_gpu.main()
    assert "slow: not enough time left" in capsys.readouterr().out
    assert json.loads((tmp_path / "steps.json").read_text())["wrong"]["outcome"] == "pass"


def test_goals_continue_after_a_failing_benchmark(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results of the benchmark's previous run are removed, because they would be judged as new results."""
    goals = load("goals")

    def run(command: list[str]) -> Any:
        if "ops.py" in command[1]:
            return subprocess.CompletedProcess(command, 1)
        Path(command[command.index("--json") + 1]).write_text(json.dumps(translated(rskip_ln=1, sas=0.7)))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(goals.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["goals.py", "--quick", "--out", str(tmp_path)])
    (tmp_path / "ops.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"goals\.py: error: failed: ops\.py --rows 4"):
        goals.main()
    assert not (tmp_path / "ops.json").exists() and (tmp_path / "decoding-tiny.json").exists()
    rows = {row["what"]: row["verdict"] for row in json.loads((tmp_path / "goals.json").read_text())}
    assert rows["training on a CPU, sas / stock"] == "pass"


def test_ops_benchmark_keeps_finished_shapes(load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ops = load("ops")

    def time_configuration(_: argparse.Namespace, shape: tuple[int, int], dtype: str) -> list[dict[str, Any]]:
        if shape[0] == 8:
            raise RuntimeError("out of memory")
        figures = {"milliseconds": spread(1.0), "speed_to": {"eager": spread(1.0)}}
        return [{"site": "sas", "by": "eager", "pass": "forward", "rows": shape[0], **figures}]

    monkeypatch.setattr(ops, "time_configuration", time_configuration)
    monkeypatch.setattr(ops, "saved_activations", lambda *_: [])
    file = tmp_path / "ops.json"
    monkeypatch.setattr(sys, "argv", ["ops.py", "--device", "cpu", "--rows", "4", "8", "--json", str(file)])
    with pytest.raises(RuntimeError):
        ops.main()
    assert [row["rows"] for row in json.loads(file.read_text())["timings"]] == [4]


def test_gpu_clock_takes_the_median_of_all_calls(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins replace the GPU's events and the function that waits for the GPU."""
    import torch

    ops = load("ops")
    calls: list[str] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            calls.append("record")

        def synchronize(self) -> None:
            calls.append("synchronize")

        def elapsed_time(self, _: object) -> float:
            return float(calls.count("call"))

    empty = torch.empty
    monkeypatch.setattr(ops, "CACHE_BYTES", 16)
    monkeypatch.setattr(torch, "empty", lambda *shape, dtype, device: empty(*shape, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda _: calls.append("wait"))
    assert ops.gpu_clock(lambda: calls.append("call")) == pytest.approx((1 + ops.GPU_CALLS) / 2 / 1000)
    assert calls == ["wait", "record", "call", "record", "synchronize"] * ops.GPU_CALLS


@pytest.mark.parametrize(("backend", "is_refused"), [("triton", True), ("auto", False)])
def test_benchmark_refuses_a_silent_fallback(
    load: Any, backend: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In decoding, a site with `backend="triton"` falls back to eager PyTorch where the kernels cannot run."""
    import torch

    from fairseq_resid import connections

    translation = load("translation")
    made = connections.build("post_ln", 16, backend=backend).eval()  # C = 16: too narrow for the kernels
    monkeypatch.setattr(sys, "argv", ["decoding.py"])
    args = argparse.Namespace(residual_backend=backend)
    x = torch.ones(2, 16)
    if not is_refused:
        with translation.watched(args, "post_ln"):
            made(x, x)
        return
    said = "decoding.py: error: --residual-backend triton: the kernels did not compute post_ln"
    with pytest.raises(SystemExit, match=said), translation.watched(args, "post_ln"):
        made(x, x)


def test_missing_gpu_is_a_one_line_error(load: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["ops.py", "--device", "cuda"])
    with pytest.raises(SystemExit):
        load("ops").main()
    assert "--device cuda: torch finds no GPU" in capsys.readouterr().err
