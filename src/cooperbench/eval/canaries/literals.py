"""Other values for literals: plausible ones, among which the right one does not stand out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from cooperbench.eval.canaries.model import Edit, Slot, Span, TestFile

_FIXED = re.compile(
    rb"""
      \\ (?: x.. | u\{\w{1,8}\} | u.... | [0-7]{1,3} | . )  # escapes
    | % [-+\#0 ]* [\w.]+                                # printf
    | \$? \{ [^{}\n]{0,200} \}                          # other placeholders
    """,
    re.VERBOSE | re.DOTALL,
)
"""Parts of strings that stay as they are."""
_WORD = re.compile(rb"[A-Za-z]{2,}")
_TOKEN = re.compile(rb"[A-Za-z]{2,}|[0-9]+|[A-Za-z]")
_WORD_IN_PATTERN = re.compile(rb"(?<![\w<\[(?\\-])[A-Za-z]{3,}(?![\w?*+>|\])-])")
"""A word of a regular expression that every match contains. Shorter ones may be in any text."""
_NUMBER = re.compile(
    rb"""
    (?P<sign> -? )
    (?P<digits> [0-9][0-9_]* (?: \.[0-9_]+ )? | \.[0-9]+ )
    (?P<rest> (?: [eE][-+]?[0-9]+ )? [A-Za-z0-9_]* )
    """,
    re.VERBOSE,
)
_PUNCTUATION = b"-+*=~_:.#!"
_VOWELS = b"aeiou"
_CONSONANTS = b"bcdfgklmnprstvz"
_MAX_DIGITS = 15
_ATTEMPTS = 8
_MANY_WORDS = 3
_MAX_DECIMALS = 25
_HIGHEST_OF_TYPES = [2**bits - 1 for bits in (7, 8, 15, 16, 31, 32, 63, 64)]


def find_words(text: bytes) -> list[bytes]:
    """Return the words of a string that can stand in other strings."""
    return _WORD.findall(_FIXED.sub(b" ", text))


def other_edits(slot: Slot, file: TestFile, random: Random, count: int) -> list[list[Edit]]:
    """Return up to `count` different changes of a slot, all of the same part of it."""
    old = file.source[slot.span.start : slot.span.end]
    if slot.kind == "fixed":
        values = random.sample(slot.alternatives, min(count, len(slot.alternatives)))
        return [[Edit(*slot.span, value)] for value in values]
    if slot.kind in ("number", "scaled_number"):
        part = Span(0, len(old))
        scaled = slot.kind == "scaled_number"
        values = _other_numbers(
            old, file.numbers, random, count, scaled=scaled, highest=_highest(slot, old, file)
        )
    else:
        chosen = _choose_part(old, random, is_phrase=slot.kind == "phrase")
        if chosen is None:
            return []
        part = chosen
        values = _other_texts(old, part, file, random, count, is_phrase=slot.kind == "phrase")
    start = slot.span.start + part.start
    end = slot.span.start + part.end
    edits = []
    for value in values:
        change = [Edit(start, end, value)]
        change += _edit_echoes(slot, old[part.start : part.end], value, file.source)
        edits.append(change)
    return edits


def _highest(slot: Slot, text: bytes, file: TestFile) -> int | None:
    """Return the largest number that may stand in a slot; None if it does not matter.

    Where nothing else is known, it is that of the smallest type that can hold the right number.
    """
    digits = text.replace(b"_", b"")
    if slot.highest is not None or not file.has_small_types or not digits.isdigit():
        return slot.highest
    value = int(digits[:_MAX_DECIMALS])
    return next((highest for highest in _HIGHEST_OF_TYPES if highest >= value), None)


def _edit_echoes(slot: Slot, old: bytes, new: bytes, source: bytes) -> list[Edit]:
    """Return edits of the messages that repeat the old value."""
    if not old:
        return []
    edits = []
    pattern = re.compile(rb"(?<![\w.])" + re.escape(old) + rb"(?![\w.])")
    for echo in slot.echoes:
        matches = pattern.finditer(source, echo.start, echo.end)
        edits += [Edit(match.start(), match.end(), new) for match in matches]
    return edits


def _choose_part(text: bytes, random: Random, *, is_phrase: bool) -> Span | None:
    """Return the part of a string that decoys change: a word or a number, or all of it."""
    readable = _FIXED.sub(lambda match: b"\0" * len(match[0]), text)
    if is_phrase:
        if b"|" in text:
            return None  # one of several alternatives may be what is found
        words = [Span(*match.span()) for match in _WORD_IN_PATTERN.finditer(readable)]
        return max(words, key=lambda word: word.end - word.start, default=None)
    tokens = [Span(*match.span()) for match in _TOKEN.finditer(readable)]
    if tokens:
        return random.choice(tokens)
    if b"\0" in readable:
        return None if not readable.strip(b"\0") else Span(0, 0)
    return Span(0, len(text))


def _other_texts(  # noqa: PLR0913  # all of it decides which texts are plausible
    text: bytes, part: Span, file: TestFile, random: Random, count: int, *, is_phrase: bool
) -> list[bytes]:
    old = text[part.start : part.end]
    if old[:1].isdigit():
        return _other_numbers(old, file.numbers, random, count, scaled=False)
    if not old.strip():
        return _sample_words(b"", file, random, count)
    if not old[:1].isalpha():
        return _other_punctuation(old, random, count)
    if len(old) == 1:
        return _other_letters(old, random, count)
    if is_phrase and len(_WORD.findall(text)) < _MANY_WORDS:
        return _nonsense(old, random, count)
    return _sample_words(old, file, random, count)


def _sample_words(old: bytes, file: TestFile, random: Random, count: int) -> list[bytes]:
    """Return other words of the file in the same case, and invented ones if it has too few."""
    words = {_with_case_of(old, word) for word in file.words}
    words = {word for word in words if word.lower() != old.lower()}
    similar = sorted(words, key=lambda word: (abs(len(word) - len(old)), word))[: 4 * count]
    values = random.sample(similar, min(count, len(similar)))
    if len(values) < count:
        invented = _nonsense(old or b"word", random, count)
        values += [word for word in invented if word not in values][: count - len(values)]
    return values


def _with_case_of(example: bytes, word: bytes) -> bytes:
    if example.isupper() and len(example) > 1:
        return word.upper()
    if example[:1].isupper():
        return word[:1].upper() + word[1:].lower()
    return word.lower()


def _nonsense(word: bytes, random: Random, count: int) -> list[bytes]:
    """Return words with other letters, which no message contains by chance."""
    values: list[bytes] = []
    for _ in range(_ATTEMPTS * count):
        letters = bytearray(word)
        for position in random.sample(range(len(word)), min(2, len(word))):
            letters[position : position + 1] = _other_letter(word[position : position + 1], random)
        value = bytes(letters)
        if value != word and value not in values:
            values.append(value)
        if len(values) == count:
            break
    return values


def _other_letter(letter: bytes, random: Random) -> bytes:
    alphabet = _VOWELS if letter.lower() in _VOWELS else _CONSONANTS
    other = random.choice(alphabet.replace(letter.lower(), b""))
    return bytes([other]).upper() if letter.isupper() else bytes([other])


def _other_letters(letter: bytes, random: Random, count: int) -> list[bytes]:
    """Return letters near this one, on both sides if there are such."""
    first = b"A"[0] if letter.isupper() else b"a"[0]
    position = letter[0] - first
    window = _window(position, count, random, lowest=0, highest=25)
    return [bytes([first + other]) for other in window]


def _other_punctuation(text: bytes, random: Random, count: int) -> list[bytes]:
    values: list[bytes] = []
    for _ in range(_ATTEMPTS * count):
        characters = bytes(random.sample(_PUNCTUATION, len(_PUNCTUATION)))
        value = text.translate(bytes.maketrans(_PUNCTUATION, characters))
        if value != text and value not in values:
            values.append(value)
        if len(values) == count:
            break
    if not values:
        letters = random.sample(_CONSONANTS, count)
        values = [text + bytes([letter]) for letter in letters]
    return values


def _other_numbers(  # noqa: PLR0913  # all of it decides which numbers are plausible
    text: bytes,
    numbers: Sequence[bytes],
    random: Random,
    count: int,
    *,
    scaled: bool,
    highest: int | None = None,
) -> list[bytes]:
    """Return numbers of the same form: near ones, and others of the file.

    The right one must not stand out: it is not the one in the middle, and they end in as many
    zeros. `scaled` ones differ in their first digit, more than any tolerance.
    """
    match = _NUMBER.fullmatch(text)
    if match is None or not match["digits"].replace(b"_", b"").replace(b".", b"").isdigit():
        return []
    if match["rest"][:1] in (b"x", b"X", b"b", b"o") and match["digits"] == b"0":
        return _other_hex_numbers(text, random, count)
    digits = match["digits"]
    has_limit = highest is not None and digits.isdigit()
    significant = _significant_digits(digits, scaled=scaled, all_digits=has_limit)
    head, tail = digits[:significant][-_MAX_DIGITS:], digits[significant:]
    prefix = digits[: significant - len(head)]
    if highest is not None and prefix.isdigit():
        highest -= int(prefix) * 10 ** len(head)
    values = [
        match["sign"] + prefix + other + tail + match["rest"]
        for other in _near_numbers(head, random, count, highest)
    ]
    if not tail and not scaled and not match["rest"]:
        alike = [number for number in numbers if _is_alike(number, text)]
        alike = [number for number in alike if highest is None or int(number) <= highest]
        for number in random.sample(alike, min(count // 2, len(alike))):
            if number not in values and values:
                values[random.randrange(len(values))] = number
    return list(dict.fromkeys(values))


def _significant_digits(digits: bytes, *, scaled: bool, all_digits: bool) -> int:
    """Return how many digits come before the last one that can be changed, with a dot."""
    if scaled:
        return len(digits) - len(digits.lstrip(b"0._")) + 1
    if all_digits:
        return len(digits)  # a larger step could be too large
    if b"." in digits and not digits.rpartition(b".")[2].strip(b"0"):
        return len(digits.partition(b".")[0].rstrip(b"0")) or 1
    return len(digits.rstrip(b"0._")) or len(digits)


def _is_alike(number: bytes, text: bytes) -> bool:
    both_plain = number.isdigit() and text.isdigit()
    has_zeros = number.endswith(b"0") == text.endswith(b"0")
    return both_plain and len(number) == len(text) > 1 and has_zeros and number != text


def _near_numbers(head: bytes, random: Random, count: int, limit: int | None = None) -> list[bytes]:
    """Return numbers near this one with as many digits, and with a dot at the same position."""
    plain = head.replace(b".", b"").replace(b"_", b"")
    width = len(plain)
    is_leading_zero = plain.startswith(b"0") and width > 1
    lowest = 0 if is_leading_zero or width == 1 else 10 ** (width - 1)
    highest = 10**width - 1
    if limit is not None:
        highest = max(lowest, min(highest, limit))
    window = _window(int(plain), count, random, lowest=lowest, highest=highest)
    # 20 and 30 would not look like 23.
    values = [value for value in window if value % 10 or plain.endswith(b"0") or width == 1]
    if len(values) < count:
        spare = _window(int(plain), 2 * count, random, lowest=lowest, highest=highest)
        values += [value for value in spare if value % 10 and value not in values]
    return [_like(head, value, width) for value in values[:count]]


def _like(head: bytes, value: int, width: int) -> bytes:
    """Return a number with the dots and underscores of another."""
    digits = list(str(value).zfill(width).encode())
    return bytes(digits.pop(0) if chr(character).isdigit() else character for character in head)


def _window(value: int, count: int, random: Random, *, lowest: int, highest: int) -> list[int]:
    """Return the others of `count + 1` successive numbers; this one has a random rank."""
    start = max(lowest, min(value - random.randint(0, count), highest - count))
    window = [other for other in range(start, start + count + 1) if other != value]
    window = [other for other in window if lowest <= other <= highest]
    random.shuffle(window)
    return window


def _other_hex_numbers(text: bytes, random: Random, count: int) -> list[bytes]:
    """Return numbers with another last digit."""
    alphabet = {b"b": b"01", b"o": b"01234567"}.get(text[1:2].lower(), b"0123456789abcdef")
    body = re.match(rb"0[A-Za-z][0-9A-Fa-f_]+", text)
    if body is None:
        return []
    last = text[body.end() - 1 : body.end()]
    others = [digit for digit in alphabet if bytes([digit]) != last.lower()]
    chosen = random.sample(others, min(count, len(others)))
    if last.isupper():
        return [
            text[: body.end() - 1] + bytes([digit]).upper() + text[body.end() :] for digit in chosen
        ]
    return [text[: body.end() - 1] + bytes([digit]) + text[body.end() :] for digit in chosen]
