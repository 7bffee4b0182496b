"""The built-in phrasebook: its sentences, splits and files, and two simple BLEU baselines."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_resid.data.text.phrasebook import grammar as phrasebook
from fairseq_resid.data.text.phrasebook import table
from fairseq_resid.data.text.phrasebook.command import main
from fairseq_resid.data.text.phrasebook.grammar import Example
from fairseq_resid.evaluation import baselines as baselines_module
from fairseq_resid.evaluation.baselines import baselines, nearest

pytestmark = pytest.mark.once

# Hash of the default files, concatenated in the order of their names.
# Change it only together with the figures in the documentation.
DEFAULT_SHA256 = "3e74879c5382524aa5e09d5c5a24e0a131537ff07c2c9b028cd8393f0718923e"
SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def default() -> dict[str, list[Example]]:
    """Return the default corpus with its combinations; tests must not change it."""
    return phrasebook.draw()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the default corpus as the command writes it; tests must not change it."""
    out = tmp_path_factory.mktemp("phrasebook") / "made" / "here"
    assert main(["--out", str(out)]) == 0
    return out


def words(text: str) -> list[str]:
    """Return the words of a sentence in lower case, with their hyphens and apostrophes."""
    return re.findall(r"[\w'-]+", text.lower())


def raw_examples(per_template: int = 900) -> Iterator[Example]:
    """Yield examples straight from the grammar, before repeated sentences are skipped."""
    generator = random.Random(7)
    for spaces in phrasebook._spaces().values():
        for space in spaces:
            size = space.size()
            for index in generator.sample(range(size), min(size, per_template // 3)):
                yield space.example(index)


# ---- the sentences ----


def test_fillers_of_a_slot_are_unique_in_both_languages() -> None:
    for slot, fillers in table.read().fillers.items():
        assert len({filler.english for filler in fillers}) == len(fillers), slot
        assert len({filler.forms["vi"] for filler in fillers}) == len(fillers), slot


def test_subjects_agree_with_their_verbs() -> None:
    forms = {filler.english: filler.forms for filler in table.read().fillers["subject"]}
    agreement = {name: " ".join(forms[name][form] for form in table.AGREEMENT) for name in forms}
    assert agreement["I"] == "base am was do have"
    assert {agreement[name] for name in ("you", "we", "they")} == {"base are were do have"}
    third = [name for name, words in agreement.items() if words == "third is was does has"]
    assert len(third) == len(forms) - 4 and {"he", "she", "Lan", "my mother", "the nurse"} <= set(third)


def test_sentences_translate_one_to_one() -> None:
    """No sentence has two translations, in either direction.

    The examples come straight from the grammar. A drawn corpus would hide a second translation, because it repeats no
    sentence.
    """
    translations: dict[str, set[str]] = defaultdict(set)
    sources: dict[str, set[str]] = defaultdict(set)
    for example in raw_examples():
        translations[example.english].add(example.vietnamese)
        sources[example.vietnamese].add(example.english)
    assert len(translations) > 30_000
    assert not [entry for entry in translations.items() if len(entry[1]) > 1]
    assert not [entry for entry in sources.items() if len(entry[1]) > 1]


def test_sentences_are_well_formed() -> None:
    for example in raw_examples(300):
        for text in (example.english, example.vietnamese):
            assert text == " ".join(text.split())
            assert text[-1] in ".?" and text[0].isupper(), text
            assert not re.search(r"[{}_]", text), text
            assert all(letter.isupper() for letter in re.findall(r"[.?!] (\w)", text)), text
        assert 4 <= len(example.english.split()) <= 15, example.english
        assert not re.search(r"\b[Aa] (?!useful)[aeiou]|\b[Aa]n [^aeiouh]", example.english), example.english
        assert example.english.isascii()


# ---- the splits ----


def test_default_output_is_frozen(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"{s}.{lang}" for s in SPLITS for lang in ("en", "vi")
    )
    content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    assert b"\r" not in content
    assert hashlib.sha256(content).hexdigest() == DEFAULT_SHA256


def test_generate_equals_the_written_files(folder: Path) -> None:
    pairs = phrasebook.generate()
    assert {split: len(pairs[split]) for split in SPLITS} == {"train": 8000, "valid": 500, "test": 500}
    for split in SPLITS:
        for side, language in enumerate(("en", "vi")):
            text = (folder / f"{split}.{language}").read_bytes().decode("utf-8")
            assert text == "".join(f"{pair[side]}\n" for pair in pairs[split])


def test_output_depends_on_seed_but_not_on_training_size() -> None:
    first = phrasebook.generate(seed=3, train=300, valid=40, test=50)
    assert [len(first[split]) for split in SPLITS] == [300, 40, 50]
    assert first == phrasebook.generate(seed=3, train=300, valid=40, test=50)
    other = phrasebook.generate(seed=4, train=300, valid=40, test=50)
    assert all(first[split] != other[split] for split in SPLITS)
    larger = phrasebook.generate(seed=3, train=600, valid=40, test=50)
    assert larger["test"] == first["test"] and larger["valid"] == first["valid"]


def test_no_sentence_occurs_twice(default: dict[str, list[Example]]) -> None:
    examples = [example for split in SPLITS for example in default[split]]
    assert len({example.english for example in examples}) == len(examples) == 9000
    assert len({example.vietnamese for example in examples}) == len(examples)


def test_combinations_are_held_out(default: dict[str, list[Example]]) -> None:
    """Combinations are held out across seeds too, whatever the order of their words."""
    train = [*default["train"], *phrasebook.draw(seed=2, train=4000, valid=1, test=1)["train"]]
    held = {
        split: {(item.template, tuple(sorted(item.combination))) for item in examples}
        for split, examples in {**default, "train": train}.items()
    }
    assert not held["train"] & held["test"]
    assert not held["train"] & held["valid"]
    assert not held["valid"] & held["test"]
    templates = {template.name for template in table.read().sentences}
    assert all({name for name, _ in held[split]} == templates for split in SPLITS)


@pytest.mark.parametrize(
    ("pattern", "fewest"),
    [
        (r"How much is (?:this|that) (.+)\?", 3),
        (r"How much did .+ pay for (?:this|that) (.+)\?", 3),
        (r".+ is not an? (\w+) but an? (\w+)\.", 5),
        (r"The (?:train|flight|coach) from (\w+) to (\w+) leaves at .+\.", 2),
        (r"The ([\w ]+) is [\w-]+ kilometers from the ([\w ]+)\.", 5),
        (r".+ does not \w+ (\w+) but often \w+ (\w+)\.", 5),
        (r"Are there any (\w+ \w+) at the .+\?", 5),
    ],
)
def test_held_out_combinations_are_visible_in_the_files(folder: Path, pattern: str, fewest: int) -> None:
    """In the files themselves, the captured words occur together either in test or in train."""
    found = {}
    for split in ("train", "test"):
        lines = (folder / f"{split}.en").read_text(encoding="utf-8").splitlines()
        found[split] = {match.groups() for line in lines if (match := re.fullmatch(pattern, line))}
    assert len(found["test"]) >= fewest and len(found["train"]) > len(found["test"])
    assert not found["train"] & found["test"]


def test_words_of_evaluation_occur_in_training(default: dict[str, list[Example]]) -> None:
    for side in ("english", "vietnamese"):
        train = Counter(word for item in default["train"] for word in words(getattr(item, side)))
        for split in ("valid", "test"):
            held_out = {word for item in default[split] for word in words(getattr(item, side))}
            rare = {word: train[word] for word in held_out if train[word] < 5}
            assert not rare, f"{split} {side}"


def test_all_words_of_the_grammar_occur_in_training(default: dict[str, list[Example]]) -> None:
    train = {word for item in default["train"] for word in words(item.vietnamese)}
    contents = table.read()
    slots = {table.kind(slot) for template in contents.sentences for slot in template.slots}
    grammar = {word for slot in slots for filler in contents.fillers[slot] for word in words(filler.forms["vi"])}
    assert len(slots) > 50 and not grammar - train


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("size", [0, -1, 10**15])
def test_impossible_sizes_are_refused(split: str, size: int) -> None:
    sizes = {"train": 10, "valid": 10, "test": 10, split: size}
    with pytest.raises(ValueError, match=f"--{split} {size}: (must be 1 or more|too many pairs)"):
        phrasebook.generate(**sizes)


def test_permutation_is_complete() -> None:
    for size in (0, 1, 2, 37):
        assert sorted(phrasebook._permutation(size, random.Random(1))) == list(range(size))


# ---- the command ----

SMALL = ["--train", "30", "--valid", "5", "--test", "5"]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Return every path in a folder, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_existing_phrasebook_is_not_rewritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data"
    assert main(["--out", str(out), *SMALL]) == 0
    times = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert main(["--out", str(out), *SMALL]) == 0
    assert "unchanged" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == times
    assert not (tmp_path / "data.partial").exists()


@pytest.mark.parametrize("change", ["seed", "extra", "missing", "edited"])
def test_folder_with_other_files_is_refused(tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data"
    assert main(["--out", str(out), *SMALL]) == 0
    if change == "extra":
        (out / "notes.txt").write_text("mine")
    elif change == "missing":
        (out / "test.vi").unlink()
    elif change == "edited":
        (out / "test.vi").write_text("mine")
    before = snapshot(tmp_path)
    capsys.readouterr()
    assert main(["--out", str(out), *SMALL, "--seed", "2" if change == "seed" else "1"]) == 2
    captured = capsys.readouterr()
    assert str(out) in captured.err and "other files" in captured.err and not captured.out
    assert snapshot(tmp_path) == before


def test_interrupted_run_is_replaced_but_unrelated_files_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, partial = tmp_path / "data", tmp_path / "data.partial"
    partial.mkdir()
    (partial / "train.en").write_text("half a fi")
    assert main(["--out", str(out), *SMALL]) == 0
    assert not partial.exists() and len(list(out.iterdir())) == 6
    partial.mkdir()
    (partial / "thesis.tex").write_text("mine")
    assert main(["--out", str(tmp_path / "data"), *SMALL]) == 0  # nothing to write, so .partial does not matter
    assert main(["--out", str(out), *SMALL, "--seed", "2"]) == 2
    for path in out.iterdir():
        path.unlink()
    assert main(["--out", str(out), *SMALL]) == 2
    assert str(partial) in capsys.readouterr().err
    assert (partial / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [["--train", "0"], ["--test", "-3"], ["--valid", "1000000000000000"], ["--train", "many"], ["--seed", "x"]],
)
def test_bad_arguments_are_refused(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(["--out", str(tmp_path / "data"), *arguments])
    except SystemExit as leave:
        code = leave.code
    assert code == 2
    error = capsys.readouterr().err
    assert arguments[0].strip("-") in error and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_output_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").write_text("mine")
    assert main(["--out", str(tmp_path / "data"), *SMALL]) == 2
    assert main(["--out", str(tmp_path / "data" / "below"), *SMALL]) == 2
    assert str(tmp_path / "data") in capsys.readouterr().err
    assert (tmp_path / "data").read_text() == "mine"


# ---- the baselines ----


def test_default_corpus_is_not_solved_by_copying(folder: Path) -> None:
    result = baselines(folder, "en", "vi")
    assert result.copy < 10
    assert 20 < result.nearest_neighbour < 60
    assert "tok:13a" in result.signature and "version:" in result.signature


def test_nearest_takes_first_of_ties_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = ["a b c d", "x b c", "a b y", "a b c", "a b c", "abc", ""]
    queries = ["a b c", "a b z", "q", "x b c e f", "abd"]
    # "a b z": "a b y" and "a b c" are equally near. "q": no words are shared, so the first choice wins.
    expected = [3, 2, 0, 1, 0]
    assert nearest(queries, choices) == expected
    monkeypatch.setattr(baselines_module, "QUERIES", 2)
    monkeypatch.setattr(baselines_module, "CHOICES", 2)
    assert nearest(queries, choices) == expected


def parallel(folder: Path, **sides: str) -> Path:
    """Write a small corpus, replacing the text of the given sides."""
    texts = {"train_en": "a b\nc d e\n", "train_vi": "A B\nC D E F\n", "test_en": "c d x\n", "test_vi": "C D E F\n"}
    for name, text in {**texts, **sides}.items():
        (folder / name.replace("_", ".")).write_bytes(text.encode("utf-8"))
    return folder


def test_baselines_command_writes_both_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parallel(tmp_path)
    out = tmp_path / "baselines.json"
    arguments = ["--raw", str(tmp_path), "--source", "en", "--target", "vi", "--json", str(out)]
    assert baselines_module.main(arguments) == 0
    written = json.loads(out.read_text(encoding="utf-8"))
    assert set(written) == {"copy", "nearest_neighbour", "signature"}
    assert written["nearest_neighbour"] == pytest.approx(100.0) and written["copy"] == 0.0
    printed = capsys.readouterr().out
    assert "100.00" in printed and "0.00" in printed and written["signature"] in printed
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("test_vi", "C D E F\nG\n", ["test.en has 1 lines", "test.vi has 2"]),
        ("train_en", "a b\n", ["train.en has 1 lines", "train.vi has 2"]),
        ("test_vi", None, ["test.vi: no such file"]),
        ("train_en", None, ["train.en: no such file"]),
    ],
)
def test_bad_baseline_input_is_refused(
    tmp_path: Path, name: str, text: str | None, message: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    parallel(tmp_path)
    if text is None:
        (tmp_path / name.replace("_", ".")).unlink()
    else:
        parallel(tmp_path, **{name: text})
    out = tmp_path / "baselines.json"
    arguments = ["--raw", str(tmp_path), "--source", "en", "--target", "vi", "--json", str(out)]
    assert baselines_module.main(arguments) == 2
    captured = capsys.readouterr()
    assert all(part in captured.err for part in message) and not captured.out
    assert not out.exists()


def test_baselines_refuse_empty_and_wrongly_encoded_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parallel(tmp_path, test_en="", test_vi="")
    arguments = ["--raw", str(tmp_path), "--source", "en", "--target", "vi"]
    assert baselines_module.main(arguments) == 2
    assert "test.en: empty" in capsys.readouterr().err
    parallel(tmp_path)
    (tmp_path / "train.vi").write_bytes("C\nté\n".encode("latin-1"))
    assert baselines_module.main(arguments) == 2
    assert "train.vi:2: not UTF-8" in capsys.readouterr().err
