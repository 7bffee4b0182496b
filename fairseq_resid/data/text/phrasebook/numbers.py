"""Whole numbers in English and Vietnamese words."""

from __future__ import annotations

ENGLISH = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
ENGLISH += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
ENGLISH_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
VIETNAMESE = ["không", "một", "hai", "ba", "bốn", "năm", "sáu", "bảy", "tám", "chín"]


def english_number(number: int) -> str:
    """Return a whole number from 0 to 999,999 in English words."""
    _check(number)
    if number < 20:
        return ENGLISH[number]
    if number < 100:
        tens, unit = divmod(number, 10)
        return ENGLISH_TENS[tens] + (f"-{ENGLISH[unit]}" if unit else "")
    base, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    count, rest = divmod(number, base)
    words = f"{english_number(count)} {name}"
    if not rest:
        return words
    return f"{words} and {english_number(rest)}" if rest < 100 else f"{words} {english_number(rest)}"


def vietnamese_number(number: int) -> str:
    """Return a whole number from 0 to 999,999 in Vietnamese words, in the northern variety ("linh", "nghìn")."""
    _check(number)
    thousands, rest = divmod(number, 1000)
    if not thousands:
        return _vietnamese_below_1000(rest)
    words = f"{_vietnamese_below_1000(thousands)} nghìn"
    return f"{words} {_vietnamese_below_1000(rest, after_thousands=True)}" if rest else words


def _vietnamese_below_1000(number: int, after_thousands: bool = False) -> str:
    """Return up to three digits in words; after thousands, the hundreds are spoken even if they are zero."""
    hundreds, rest = divmod(number, 100)
    tens, unit = divmod(rest, 10)
    words = []
    if hundreds or after_thousands:
        words += [VIETNAMESE[hundreds], "trăm"]
    if tens > 1:
        words += [VIETNAMESE[tens], "mươi"]
    elif tens == 1:
        words.append("mười")
    elif words and unit:
        words.append("linh")
    if unit == 5 and tens:
        words.append("lăm")
    elif unit == 1 and tens > 1:
        words.append("mốt")
    elif unit or not words:
        words.append(VIETNAMESE[unit])
    return " ".join(words)


def _check(number: int) -> None:
    if not 0 <= number <= 999_999:
        raise ValueError(f"{number}: cannot be spelled; must be 0 to 999,999")
