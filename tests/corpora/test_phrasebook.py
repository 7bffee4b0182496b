"""The embedded phrasebook (grammar, splits, files) and the two baselines under a model's BLEU on it."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairseq_resid.corpora.phrasebook import grammar as phrasebook
from fairseq_resid.corpora.phrasebook import lexicon as phrasebook_lexicon
from fairseq_resid.corpora.phrasebook.__main__ import main
from fairseq_resid.corpora.phrasebook.grammar import Example, english_number, vietnamese_number
from fairseq_resid.evaluation import baselines as baselines_module
from fairseq_resid.evaluation.baselines import baselines, nearest

pytestmark = pytest.mark.once

# of the default files one after the other by name; change it only together with the figures in the documentation
DEFAULT_SHA256 = "3e74879c5382524aa5e09d5c5a24e0a131537ff07c2c9b028cd8393f0718923e"
SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def default() -> dict[str, list[Example]]:
    """The default corpus with its combinations; no test changes it."""
    return phrasebook.draw()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default corpus as the command writes it; no test changes it."""
    out = tmp_path_factory.mktemp("phrasebook") / "made" / "here"
    assert main(["--out", str(out)]) == 0
    return out


def words(text: str) -> list[str]:
    """The words of a sentence in lower case, hyphens and apostrophes inside them kept."""
    return re.findall(r"[\w'-]+", text.lower())


def raw_examples(per_template: int = 900) -> Iterator[Example]:
    """Examples straight from the grammar, before sentences already seen are passed over."""
    generator = random.Random(7)
    for spaces in phrasebook._spaces().values():
        for space in spaces:
            size = space.size()
            for index in generator.sample(range(size), min(size, per_template // 3)):
                yield space.example(index)


# ---- words of numbers ----


@pytest.mark.parametrize(
    ("number", "english", "vietnamese"),
    [
        (0, "zero", "không"),
        (1, "one", "một"),
        (4, "four", "bốn"),
        (5, "five", "năm"),
        (10, "ten", "mười"),
        (11, "eleven", "mười một"),
        (14, "fourteen", "mười bốn"),
        (15, "fifteen", "mười lăm"),
        (20, "twenty", "hai mươi"),
        (21, "twenty-one", "hai mươi mốt"),
        (25, "twenty-five", "hai mươi lăm"),
        (34, "thirty-four", "ba mươi bốn"),
        (55, "fifty-five", "năm mươi lăm"),
        (91, "ninety-one", "chín mươi mốt"),
        (100, "one hundred", "một trăm"),
        (101, "one hundred and one", "một trăm linh một"),
        (105, "one hundred and five", "một trăm linh năm"),
        (110, "one hundred and ten", "một trăm mười"),
        (111, "one hundred and eleven", "một trăm mười một"),
        (115, "one hundred and fifteen", "một trăm mười lăm"),
        (121, "one hundred and twenty-one", "một trăm hai mươi mốt"),
        (250, "two hundred and fifty", "hai trăm năm mươi"),
        (555, "five hundred and fifty-five", "năm trăm năm mươi lăm"),
        (1000, "one thousand", "một nghìn"),
        (1005, "one thousand and five", "một nghìn không trăm linh năm"),
        (1015, "one thousand and fifteen", "một nghìn không trăm mười lăm"),
        (1050, "one thousand and fifty", "một nghìn không trăm năm mươi"),
        (2300, "two thousand three hundred", "hai nghìn ba trăm"),
        (15_000, "fifteen thousand", "mười lăm nghìn"),
        (50_000, "fifty thousand", "năm mươi nghìn"),
        (105_000, "one hundred and five thousand", "một trăm linh năm nghìn"),
        (
            999_999,
            "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
            "chín trăm chín mươi chín nghìn chín trăm chín mươi chín",
        ),
    ],
)
def test_numbers(number: int, english: str, vietnamese: str) -> None:
    assert english_number(number) == english
    assert vietnamese_number(number) == vietnamese


def test_numbers_are_all_different() -> None:
    sample = [*range(2200), *range(9_990, 10_120), *range(99_900, 101_200), *range(998_900, 1_000_000)]
    assert len({english_number(number) for number in sample}) == len(set(sample))
    assert len({vietnamese_number(number) for number in sample}) == len(set(sample))


@pytest.mark.parametrize("number", [-1, 1_000_000])
def test_numbers_out_of_range(number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        english_number(number)
    with pytest.raises(ValueError, match=str(number)):
        vietnamese_number(number)


# ---- the grammar: sentences written by hand ----

HAND_WRITTEN = [
    (
        "how_much",
        {"this": "this", "goods": "blue shirt"},
        "How much is this blue shirt?",
        "Cái áo sơ mi màu xanh này bao nhiêu tiền?",
    ),
    (
        "bought_at",
        {"subject": "my mother", "deal": "buy", "goods": "old umbrella", "place": "market", "past": "yesterday"},
        "My mother bought an old umbrella at the market yesterday.",
        "Hôm qua mẹ của tôi đã mua một cái ô cũ ở chợ.",
    ),
    (
        "did_not_buy",
        {"subject": "she", "deal": "sell", "goods": "red bicycle", "past": "last Sunday"},
        "She did not sell the red bicycle last Sunday.",
        "Chủ nhật tuần trước cô ấy đã không bán chiếc xe đạp màu đỏ.",
    ),
    (
        "not_yet",
        {"subject": "we", "favour": "choose", "goods": "new book", "companion": "your father"},
        "We have not chosen the new book for your father yet.",
        "Chúng tôi chưa chọn quyển sách mới cho bố của bạn.",
    ),
    (
        "will_bring",
        {"subject": "he", "favour": "bring", "count": "three", "goods": "ripe mango", "companion": "their neighbor"}
        | {"future": "in two days"},
        "He will bring three ripe mangoes for their neighbor in two days.",
        "Hai ngày nữa anh ấy sẽ mang ba quả xoài chín cho hàng xóm của họ.",
    ),
    (
        "doing_now",
        {"subject": "I", "activity": "listen to music", "place": "library", "companion": "your younger sister"},
        "I am listening to music at the library with your younger sister.",
        "Tôi đang nghe nhạc ở thư viện với em gái của bạn.",
    ),
    (
        "on_days",
        {"subject": "the nurse", "frequency": "never", "activity": "watch films", "place": "cinema", "day": "Monday"},
        "The nurse never watches films at the cinema on Mondays.",
        "Y tá không bao giờ xem phim ở rạp chiếu phim vào thứ Hai.",
    ),
    (
        "every_time",
        {"subject": "they", "activity": "teach English", "companion": "our daughter", "repeated": "every morning"},
        "They teach English with our daughter every morning.",
        "Mỗi sáng họ dạy tiếng Anh với con gái của chúng tôi.",
    ),
    (
        "did_question",
        {"subject": "you", "activity": "play chess", "place": "park", "past": "last night"},
        "Did you play chess at the park last night?",
        "Tối qua bạn có chơi cờ ở công viên không?",
    ),
    (
        "not_want",
        {"pronoun": "she", "activity": "sing", "present": "today", "feeling": "tired"},
        "She does not want to sing today because she is very tired.",
        "Hôm nay cô ấy không muốn hát vì cô ấy rất mệt.",
    ),
    (
        "not_this_food",
        {"subject": "Tuan", "use": "eat", "food1": "beef", "food2": "vegetables"},
        "Tuan does not eat beef but often eats vegetables.",
        "Tuấn không ăn thịt bò nhưng thường ăn rau.",
    ),
    (
        "have_animals",
        {"subject": "they", "count1": "two", "coat1": "small", "beast1": "cat", "count2": "five", "coat2": "old"}
        | {"beast2": "buffalo"},
        "They have two small cats and five old buffaloes.",
        "Họ có hai con mèo nhỏ và năm con trâu già.",
    ),
    (
        "not_any",
        {"subject": "Lan", "goods": "old newspaper", "present": "this week"},
        "Lan does not need any old newspapers this week.",
        "Tuần này Lan không cần tờ báo cũ nào.",
    ),
    (
        "costs",
        {"this": "that", "goods": "red hat", "price": "fifty thousand", "place": "bookstore"},
        "That red hat costs fifty thousand dong at the bookstore.",
        "Cái mũ màu đỏ kia giá năm mươi nghìn đồng ở hiệu sách.",
    ),
    (
        "where",
        {"owner": "Hung's", "thing": "black dog"},
        "Where is Hung's black dog?",
        "Con chó đen của Hùng ở đâu?",
    ),
    (
        "is_there",
        {"owner": "her", "thing": "big knife", "spot": "in the kitchen"},
        "Her big knife is in the kitchen.",
        "Con dao to của cô ấy ở trong bếp.",
    ),
    (
        "near",
        {"size1": "new", "place1": "bank", "relation": "opposite", "size2": "old", "place2": "hospital"},
        "The new bank is opposite the old hospital.",
        "Ngân hàng mới ở đối diện bệnh viện cũ.",
    ),
    (
        "distance",
        {"place1": "airport", "number": "twenty-one", "place2": "station"},
        "The airport is twenty-one kilometers from the station.",
        "Sân bay cách nhà ga hai mươi mốt ki-lô-mét.",
    ),
    (
        "leaves_at",
        {"trip": "train", "city1": "Hue", "city2": "Hanoi", "clock": "half past seven in the morning"},
        "The train from Hue to Hanoi leaves at half past seven in the morning.",
        "Chuyến tàu từ Huế đến Hà Nội khởi hành lúc bảy giờ rưỡi sáng.",
    ),
    (
        "must_go",
        {"hour": "a quarter to three", "pronoun": "he", "place": "office"},
        "It is a quarter to three, so he has to go to the office.",
        "Bây giờ là ba giờ kém mười lăm nên anh ấy phải đi đến văn phòng.",
    ),
    (
        "ask_time",
        {"name": "Mai", "activity": "rest", "hour": "ten past nine"},
        "Mai, what time is it? I will rest at ten past nine.",
        "Mai ơi, mấy giờ rồi? Tôi sẽ nghỉ ngơi lúc chín giờ mười.",
    ),
    (
        "is_job",
        {"relative": "his son", "trait": "honest", "job": "lawyer", "city": "Danang"},
        "His son is an honest lawyer in Danang.",
        "Con trai của anh ấy là một luật sư thật thà ở Đà Nẵng.",
    ),
    (
        "is_not_job",
        {"relative": "our father", "job1": "teacher", "job2": "engineer"},
        "Our father is not a teacher but an engineer.",
        "Bố của chúng tôi không phải là giáo viên mà là kỹ sư.",
    ),
    (
        "felt",
        {"relative": "my grandmother", "feeling1": "sick", "past": "last week", "feeling2": "happy"},
        "My grandmother was very sick last week but is very happy now.",
        "Tuần trước bà của tôi rất ốm nhưng bây giờ rất vui.",
    ),
    (
        "are_there",
        {"goods": "useful map", "place": "hotel", "present": "today"},
        "Are there any useful maps at the hotel today?",
        "Hôm nay ở khách sạn có tấm bản đồ hữu ích nào không?",
    ),
    (
        "whose",
        {"this": "this", "goods": "white car", "possessive1": "yours", "possessive2": "hers"},
        "Is this white car yours or hers?",
        "Chiếc ô tô màu trắng này là của bạn hay của cô ấy?",
    ),
    (
        "order",
        {"subject": "we", "count1": "two", "portion1": "cups of tea", "count2": "three", "portion2": "bowls of rice"},
        "We would like two cups of tea and three bowls of rice.",
        "Chúng tôi muốn hai cốc trà và ba bát cơm.",
    ),
    (
        "how_is",
        {"part": "morning", "name": "Nam", "kin_noun1": "mother", "kin_noun2": "son", "present": "today"},
        "Good morning, Nam! How are your mother and your son today?",
        "Chào buổi sáng, Nam! Hôm nay mẹ của bạn và con trai của bạn có khỏe không?",
    ),
    (
        "folk_bought",
        {"this": "that", "folk": "tall woman", "deal": "sell", "count": "four", "goods": "fresh orange"}
        | {"past": "this morning"},
        "That tall woman sold four fresh oranges this morning.",
        "Sáng nay người phụ nữ cao kia đã bán bốn quả cam tươi.",
    ),
    (
        "saw_folk",
        {"subject": "I", "count": "two", "folk": "thin child", "place": "beach", "past": "three days ago"},
        "I saw two thin children at the beach three days ago.",
        "Ba ngày trước tôi đã nhìn thấy hai đứa trẻ gầy ở bãi biển.",
    ),
    (
        "animal_is",
        {"this": "that", "animal": "old horse", "mood1": "hungry", "mood2": "thin"},
        "That old horse is very hungry but not thin.",
        "Con ngựa già kia rất đói nhưng không gầy.",
    ),
]


@pytest.mark.parametrize(
    ("name", "fillers", "english", "vietnamese"), HAND_WRITTEN, ids=[row[0] for row in HAND_WRITTEN]
)
def test_hand_written_sentence(name: str, fillers: dict[str, str], english: str, vietnamese: str) -> None:
    template = next(template for template in phrasebook.templates() if template.name == name)
    assert sorted(fillers) == sorted(template.slots)
    pools = phrasebook.pools()
    entries = {
        slot: next(entry for entry in pools[slot.rstrip("12")] if entry.english == filler)
        for slot, filler in fillers.items()
    }
    assert template.render(entries) == (english, vietnamese)


def test_templates_fill_the_same_slots_in_both_languages() -> None:
    names = [template.name for template in phrasebook.templates()]
    assert len(set(names)) == len(names)
    assert set(phrasebook_lexicon.RARE_TEMPLATES) <= set(names)
    for template in phrasebook.templates():
        vietnamese = Counter(re.findall(r"{(\w+):vi}", template.vietnamese))
        assert set(vietnamese) == set(template.slots), template.name
        assert "{" not in re.sub(r"{\w+:vi}", "", template.vietnamese), template.name
        assert template.key and set(template.key) <= set(template.slots), template.name


def test_every_filler_is_one_english_and_one_vietnamese() -> None:
    for slot, entries in phrasebook.pools().items():
        assert len({entry.english for entry in entries}) == len(entries), slot
        assert len({entry.forms["vi"] for entry in entries}) == len(entries), slot


def test_sentences_translate_one_to_one() -> None:
    """Straight from the grammar, because the draw would hide a second translation by passing it over."""
    translations: dict[str, set[str]] = defaultdict(set)
    sources: dict[str, set[str]] = defaultdict(set)
    for example in raw_examples():
        translations[example.english].add(example.vietnamese)
        sources[example.vietnamese].add(example.english)
    assert len(translations) > 30_000
    assert not [entry for entry in translations.items() if len(entry[1]) > 1]
    assert not [entry for entry in sources.items() if len(entry[1]) > 1]


def test_form_of_the_sentences() -> None:
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


def test_generate_is_what_is_written(folder: Path) -> None:
    pairs = phrasebook.generate()
    assert {split: len(pairs[split]) for split in SPLITS} == {"train": 8000, "valid": 500, "test": 500}
    for split in SPLITS:
        for side, language in enumerate(("en", "vi")):
            text = (folder / f"{split}.{language}").read_bytes().decode("utf-8")
            assert text == "".join(f"{pair[side]}\n" for pair in pairs[split])


def test_sizes_and_seeds() -> None:
    first = phrasebook.generate(seed=3, train=300, valid=40, test=50)
    assert [len(first[split]) for split in SPLITS] == [300, 40, 50]
    assert first == phrasebook.generate(seed=3, train=300, valid=40, test=50)
    other = phrasebook.generate(seed=4, train=300, valid=40, test=50)
    assert all(first[split] != other[split] for split in SPLITS)
    larger = phrasebook.generate(seed=3, train=600, valid=40, test=50)
    assert larger["test"] == first["test"] and larger["valid"] == first["valid"]


def test_no_sentence_twice(default: dict[str, list[Example]]) -> None:
    examples = [example for split in SPLITS for example in default[split]]
    assert len({example.english for example in examples}) == len(examples) == 9000
    assert len({example.vietnamese for example in examples}) == len(examples)


def test_combinations_are_held_out(default: dict[str, list[Example]]) -> None:
    """Also over seeds, and with the words of a combination in any order."""
    train = [*default["train"], *phrasebook.draw(seed=2, train=4000, valid=1, test=1)["train"]]
    held = {
        split: {(item.template, tuple(sorted(item.combination))) for item in examples}
        for split, examples in {**default, "train": train}.items()
    }
    assert not held["train"] & held["test"]
    assert not held["train"] & held["valid"]
    assert not held["valid"] & held["test"]
    templates = {template.name for template in phrasebook.templates()}
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
def test_combinations_read_from_the_sentences(folder: Path, pattern: str, fewest: int) -> None:
    """What the generator says of itself, seen in the files: the captured words together are in test or in train."""
    found = {}
    for split in ("train", "test"):
        lines = (folder / f"{split}.en").read_text(encoding="utf-8").splitlines()
        found[split] = {match.groups() for line in lines if (match := re.fullmatch(pattern, line))}
    assert len(found["test"]) >= fewest and len(found["train"]) > len(found["test"])
    assert not found["train"] & found["test"]


def test_test_words_are_in_training(default: dict[str, list[Example]]) -> None:
    for side in ("english", "vietnamese"):
        train = Counter(word for item in default["train"] for word in words(getattr(item, side)))
        for split in ("valid", "test"):
            held_out = {word for item in default[split] for word in words(getattr(item, side))}
            rare = {word: train[word] for word in held_out if train[word] < 5}
            assert not rare, f"{split} {side}"


def test_all_words_of_the_grammar_are_in_training(default: dict[str, list[Example]]) -> None:
    train = {word for item in default["train"] for word in words(item.vietnamese)}
    grammar = {
        word for entries in phrasebook.pools().values() for entry in entries for word in words(entry.forms["vi"])
    }
    assert not grammar - train


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("size", [0, -1, 10**15])
def test_impossible_sizes(split: str, size: int) -> None:
    sizes = {"train": 10, "valid": 10, "test": 10, split: size}
    with pytest.raises(ValueError, match=f"{split}: {size} pairs asked for, (at least 1|the grammar holds)"):
        phrasebook.generate(**sizes)


def test_permutation_is_complete() -> None:
    for size in (0, 1, 2, 37):
        assert sorted(phrasebook._permutation(size, random.Random(1))) == list(range(size))


# ---- the command ----

SMALL = ["--train", "30", "--valid", "5", "--test", "5"]


def snapshot(folder: Path) -> dict[str, bytes | None]:
    """Every path below a folder, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_same_folder_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "data"
    assert main(["--out", str(out), *SMALL]) == 0
    times = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    assert main(["--out", str(out), *SMALL]) == 0
    assert "unchanged" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == times
    assert not (tmp_path / "data.partial").exists()


@pytest.mark.parametrize("change", ["seed", "extra", "missing", "edited"])
def test_folder_with_other_content(tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]) -> None:
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
    assert str(out) in captured.err and "other content" in captured.err and not captured.out
    assert snapshot(tmp_path) == before


def test_stopped_run_is_taken_up_and_foreign_files_are_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, partial = tmp_path / "data", tmp_path / "data.partial"
    partial.mkdir()
    (partial / "train.en").write_text("half a fi")
    assert main(["--out", str(out), *SMALL]) == 0
    assert not partial.exists() and len(list(out.iterdir())) == 6
    partial.mkdir()
    (partial / "thesis.tex").write_text("mine")
    assert main(["--out", str(tmp_path / "data"), *SMALL]) == 0  # nothing to write, nothing in the way
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
def test_bad_arguments(tmp_path: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main(["--out", str(tmp_path / "data"), *arguments])
    except SystemExit as leave:
        code = leave.code
    assert code == 2
    error = capsys.readouterr().err
    assert arguments[0].strip("-") in error and "Traceback" not in error
    assert not list(tmp_path.iterdir())


def test_out_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").write_text("mine")
    assert main(["--out", str(tmp_path / "data"), *SMALL]) == 2
    assert main(["--out", str(tmp_path / "data" / "below"), *SMALL]) == 2
    assert str(tmp_path / "data") in capsys.readouterr().err
    assert (tmp_path / "data").read_text() == "mine"


# ---- the baselines ----


def test_baselines_of_the_default_corpus(folder: Path) -> None:
    result = baselines(folder, "en", "vi")
    assert result.copy < 10
    assert 20 < result.nearest_neighbour < 60
    assert "tok:13a" in result.signature and "version:" in result.signature


def test_nearest_by_words_first_of_equals_over_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = ["a b c d", "x b c", "a b y", "a b c", "a b c", "abc", ""]
    queries = ["a b c", "a b z", "q", "x b c e f", "abd"]
    # "a b z": "a b y" and "a b c" are equally near; "q": nothing is shared, so the very first
    expected = [3, 2, 0, 1, 0]
    assert nearest(queries, choices) == expected
    monkeypatch.setattr(baselines_module, "QUERIES", 2)
    monkeypatch.setattr(baselines_module, "CHOICES", 2)
    assert nearest(queries, choices) == expected


def parallel(folder: Path, **sides: str) -> Path:
    """Write a small corpus, with other text where a side is named."""
    texts = {"train_en": "a b\nc d e\n", "train_vi": "A B\nC D E F\n", "test_en": "c d x\n", "test_vi": "C D E F\n"}
    for name, text in {**texts, **sides}.items():
        (folder / name.replace("_", ".")).write_bytes(text.encode("utf-8"))
    return folder


def test_baselines_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
def test_baselines_errors(
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


def test_baselines_of_empty_and_of_other_encodings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parallel(tmp_path, test_en="", test_vi="")
    arguments = ["--raw", str(tmp_path), "--source", "en", "--target", "vi"]
    assert baselines_module.main(arguments) == 2
    assert "test.en: empty" in capsys.readouterr().err
    parallel(tmp_path)
    (tmp_path / "train.vi").write_bytes("C\nté\n".encode("latin-1"))
    assert baselines_module.main(arguments) == 2
    assert "train.vi:2: not UTF-8" in capsys.readouterr().err
