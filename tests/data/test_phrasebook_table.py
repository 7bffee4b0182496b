"""The table of the phrasebook: spelled numbers, hand-written sentences, and mistakes in the table."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path

import pytest

from fairseq_resid.data.text.phrasebook import table
from fairseq_resid.data.text.phrasebook.numbers import english_number, vietnamese_number

pytestmark = pytest.mark.once

# ---- spelled numbers ----


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
def test_numbers_are_spelled_in_both_languages(number: int, english: str, vietnamese: str) -> None:
    assert english_number(number) == english
    assert vietnamese_number(number) == vietnamese


def test_spelled_numbers_are_unique() -> None:
    sample = [*range(2200), *range(9_990, 10_120), *range(99_900, 101_200), *range(998_900, 1_000_000)]
    assert len({english_number(number) for number in sample}) == len(set(sample))
    assert len({vietnamese_number(number) for number in sample}) == len(set(sample))


@pytest.mark.parametrize("number", [-1, 1_000_000])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        english_number(number)
    with pytest.raises(ValueError, match=str(number)):
        vietnamese_number(number)


# ---- the table: hand-written sentences ----

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
def test_hand_written_sentence_has_its_translation(
    name: str, fillers: dict[str, str], english: str, vietnamese: str
) -> None:
    contents = table.read()
    template = next(template for template in contents.sentences if template.name == name)
    assert sorted(fillers) == sorted(template.slots)
    chosen = {
        slot: next(filler for filler in contents.fillers[slot.rstrip("12")] if filler.english == text)
        for slot, text in fillers.items()
    }
    assert template.render(chosen) == (english, vietnamese)


# ---- the table: its structure ----


def test_sentences_fill_the_same_slots_in_both_languages() -> None:
    sentences = table.read().sentences
    assert len({template.name for template in sentences}) == len(sentences) == 54
    assert sum(template.is_rare for template in sentences) == 14
    for template in sentences:
        vietnamese = Counter(re.findall(r"{(\w+):vi}", template.vietnamese))
        assert set(vietnamese) == set(template.slots), template.name
        assert "{" not in re.sub(r"{\w+:vi}", "", template.vietnamese), template.name
        assert template.key and set(template.key) <= set(template.slots), template.name


def test_rows_expand_in_order(tmp_path: Path) -> None:
    path = tmp_path / "table.tsv"
    rows = """\
        # a comment, and an empty line

        hue|red|đỏ
        hue|blue|xanh
        toy|ball|bóng|plural: balls
        toy|top|quay|plural: tops
        toys|{hue} {toy}|{toy:vi} {hue:vi}|plural: {hue} {toy:plural}
        toys|new {hue} {toy}|{hue:vi} {toy:vi} mới|plural: {hue} {toy:plural}
        all|{toys}|{toys:vi}
        when|{n} days ago|{n:vi} ngày trước|n: 2-10 by 4
        sentence|{when} {all:plural}.|{all:vi} {when:vi}.|name: s; held out: all
    """
    path.write_text(textwrap.dedent(rows).replace("|", "\t"), encoding="utf-8")
    fillers = table.read(path).fillers
    assert [filler.forms["vi"] for filler in fillers["all"]] == [
        *("bóng đỏ", "bóng xanh", "quay đỏ", "quay xanh"),  # the last slot of the Vietnamese side varies fastest
        *("đỏ bóng mới", "đỏ quay mới", "xanh bóng mới", "xanh quay mới"),
    ]
    assert [filler.forms["plural"] for filler in fillers["all"]][:3] == ["red balls", "blue balls", "red tops"]
    assert [filler.english for filler in fillers["when"]] == ["two days ago", "six days ago", "ten days ago"]


# ---- the table: mistakes ----

ROWS = """\
toy|ball|bóng|plural: balls
toy|top|quay|plural: tops
trade|cook|đầu bếp
minute|{n} o'clock|{n:vi} giờ
hour|{minute}|{minute:vi}|n: 1-12
sentence|The {trade} has a {toy} at {hour}.|{hour:vi} {trade:vi} có {toy:vi}.|name: has; held out: toy
""".replace("|", "\t")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("when|now", "2 columns: a row must have 3 or 4, separated by tabs"),
        ("when|now|bây giờ|present: base|x", "5 columns"),
        ("when||bây giờ", "column '': empty or"),
        ("when|right  now|bây giờ", "column 'right  now': empty or has extra spaces"),
        ("when|now|bây giờ ", "column 'bây giờ ': empty or has extra spaces"),
        ("when|now|bây\u00a0giờ", "extra spaces"),
        ("place1|market|chợ", "slot 'place1': invalid name"),
        ("food|crème|kem", "'crème': not ASCII"),
        ("toy|doll|búp bê|plural: dolls", "slot 'toy': already used by a row above"),
        ("n|one|một", "slot 'n': already used by a row above"),
        ("when|now|bây giờ|soon", "'soon': invalid note; notes are NAME: TEXT"),
        ("when|now|bây giờ|past: then; past: once", "'past: once': invalid note; notes are NAME: TEXT"),
        ("when|now|bây giờ|vi: giờ", "'vi: giờ': invalid note; notes are NAME: TEXT"),
        ("when|{n} days|{n:vi} ngày|n: 2 to 4", "n: '2 to 4': must be FIRST-LAST"),
        ("when|{n} days|{n:vi} ngày|n: 4-2", "n: '4-2': must be FIRST-LAST"),
        ("when|days|ngày|n: 2-4", "'days': fills 'when' twice"),
        ("size|big|to/size|large|to", "'to': fills 'size' twice"),
        ("size|big {toy|to {toy:vi}", "'big {toy': invalid slot; slots are written {slot} or {slot:form}"),
        ("size|big {ball}|{ball:vi} to", "{ball}: no row above fills it"),
        ("size|big {toy:past}|{toy:vi} to", "{toy:past}: 'ball' has no form 'past'"),
        ("size|big {toy:{trade:do}}|{trade:vi} {toy:vi}", "{toy:{trade:do}}: 'ball' has no form 'does'"),
        ("size|big {toy}|to", "the English has {toy}, the rest has no slot"),
        ("size|big|to|plural: big {toy}", "the English has no slot, the rest has no slot or {toy}"),
        ("size|big {toy}|{toy} to", "{toy}: the Vietnamese needs {toy:vi}"),
        ("sentence|A {toy}.|{toy:vi}.", "invalid notes: a sentence has"),
        ("sentence|A {toy}.|{toy:vi}.|name: a", "invalid notes: a sentence has"),
        ("sentence|A {toy}.|{toy:vi}.|name: a; held out: toy; rare: no", "invalid notes: a sentence has"),
        ("sentence|A {toy}.|{toy:vi}.|name: has; held out: toy", "name 'has': already used by a row above"),
        ("sentence|A {toy}.|{toy:vi}.|name: a; held out: trade", "held out 'trade': must be slots of the sentence"),
        ("sentence|A {toy}.|{toy:vi}.|name: a; held out: toy toy", "held out 'toy toy': must be slots of the sentence"),
        ("sentence|It is {minute}.|{minute:vi}.|name: a; held out: minute", '{minute}: "{n} o\'clock" needs a number'),
        ("plce|market|chợ", "slot 'plce': no row below uses it"),
    ],
)
def test_mistake_in_the_table_is_reported(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "table.tsv"
    path.write_text(ROWS, encoding="utf-8")
    assert len(table.read(path).fillers["hour"]) == 12
    path.write_text("\n".join([f"{ROWS}# a comment", *row.replace("|", "\t").split("/")]), encoding="utf-8")
    with pytest.raises(ValueError) as error:
        table.read(path)
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{path}:{8 + row.count('/')}: ") and message in line


def test_missing_or_wrongly_encoded_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"table\.tsv: no such file"):
        table.read(tmp_path / "table.tsv")
    (tmp_path / "table.tsv").write_bytes(ROWS.encode() + b"toy\tdoll\tb\xfap b\xea\n")
    with pytest.raises(ValueError, match=r"table\.tsv:7: not UTF-8"):
        table.read(tmp_path / "table.tsv")
