"""Other values for literals: plausible ones, among which the right one does not stand out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from random import Random
from typing import NamedTuple

from cooperbench.eval.canaries.model import Edit, Slot, Span
from cooperbench.eval.canaries.vocabulary import WORD, WordPool, with_case_of

_FIXED = re.compile(
    rb"""
      \\ (?: x.. | u\{\w{1,8}\} | u.... | [0-7]{1,3} | . )  # escapes
    | % [-+\#0 ]* [\w.]+                                # printf
    | \$? \{ [^{}\n]{0,200} \}                          # other placeholders
    """,
    re.VERBOSE | re.DOTALL,
)
"""Parts of strings that stay as they are."""
_TOKEN = re.compile(rb"[A-Za-z]{2,}|[0-9]+|[A-Za-z]")
_SEPARATOR = re.compile(rb"(?<=[\w}])[ :,;=/|+*#~&@!.<>-]{1,4}(?=[\w{])")
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
_SEPARATORS = (
    *(b" ", b": ", b", ", b"; ", b":", b",", b";", b"/", b" / ", b"-", b" - ", b"--", b"->"),
    *(b" -> ", b"=", b" = ", b"==", b"=>", b" => ", b"|", b" | ", b"+", b" + ", b"*", b" * "),
    *(b"#", b" #", b"~", b" ~ ", b"&", b" & ", b"@", b" @ ", b"!", b". ", b".", b"..", b"::"),
)
_PUNCTUATION = b"-+*=~_:.#!"
_VOWELS = b"aeiou"
_CONSONANTS = b"bcdfgklmnprstvz"
_MAX_DIGITS = 15
_MAX_DECIMALS = 25
_HIGHEST_OF_TYPES = [2**bits - 1 for bits in (7, 8, 15, 16, 31, 32, 63, 64)]
_NOT_IN_NAMES = bytes(character for character in range(128) if not chr(character).isalnum())
_ATTEMPTS = 8
_MANY_WORDS = 3
_SMALL_RANGE = 3
"""Distance of other numbers, at most, in multiples of the number of alternatives."""
_SMALL = 10
_SCALED_STEP = 4
"""Distance, in percent, of numbers that are compared with a tolerance."""


class Part(NamedTuple):
    """A part of a slot that decoys change: a word, a number, a separator, or all of it."""

    slot: Slot
    span: Span

    def text(self, source: bytes) -> bytes:
        """Return what stands there."""
        return source[self.span.start : self.span.end]


class KnownValues:
    """Other values that decoys of a suite already have, by the right value.

    A value that is expected in several tests gets the same other values in all of them. Otherwise
    it would be the one that is common to their copies.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[Hashable, ...], list[bytes]] = {}

    def get(self, key: tuple[Hashable, ...], make: Callable[[], list[bytes]]) -> list[bytes]:
        """Return the values for a key; make them if there are none."""
        if key not in self._values:
            self._values[key] = make()
        return list(self._values[key])


class Surroundings(NamedTuple):
    """The texts that code under test can see besides the expected value of a check."""

    source: bytes
    pool: WordPool
    shown: frozenset[bytes]
    """Words (in lower case) and numbers in the same test."""
    numbers: Counter[bytes]
    """Uses of numbers in the file apart from values that decoys change."""
    known_values: KnownValues
    has_small_types: bool = False
    """Whether numbers are compared with ones of the smallest type that can hold them."""
    words: frozenset[bytes] = frozenset()
    """Words, in lower case, in strings of the file."""
    all_numbers: frozenset[bytes] = frozenset()
    """All numbers of the file."""


def find_words(text: bytes) -> list[bytes]:
    """Return the words of a string that can stand in other strings."""
    return WORD.findall(_FIXED.sub(b" ", text))


def find_tokens(source: bytes) -> frozenset[bytes]:
    """Return all words, in lower case, and numbers of a text."""
    return frozenset(token.lower() for token in _TOKEN.findall(source))


def find_token_spans(source: bytes, span: Span) -> list[Span]:
    """Return the positions of words and numbers in a part of a text."""
    matches = _TOKEN.finditer(source, span.start, span.end)
    return [Span(*match.span()) for match in matches]


def count_tokens(source: bytes, tokens: Iterable[bytes]) -> Counter[bytes]:
    """Count how often some tokens stand in a text."""
    kept = frozenset(tokens)
    return Counter(token for token in _TOKEN.findall(source) if token in kept)


def find_parts(slot: Slot, source: bytes) -> list[Part]:
    """Return the parts of a slot that can be changed."""
    text = source[slot.span.start : slot.span.end]
    if slot.kind in ("fixed", "number", "scaled_number"):
        return [Part(slot, slot.span)]
    readable = _FIXED.sub(lambda match: b"\0" * len(match[0]), text)
    spans = []
    if slot.kind == "phrase":
        if b"|" in text:
            return []  # one of several alternatives may be what is found
        words = [Span(*match.span()) for match in _WORD_IN_PATTERN.finditer(readable)]
        # The longest word is the least likely to be in another text.
        spans += sorted(words, key=lambda word: word.start - word.end)[:1]
    else:
        spans += [Span(*match.span()) for match in _TOKEN.finditer(readable)]
        if spans and source[slot.span.start - 1 : slot.span.start] != b"/":  # not in patterns
            separators = _SEPARATOR.finditer(readable)
            spans += [Span(*match.span()) for match in separators if match[0].strip()]
        if not spans and b"\0" not in readable:
            spans.append(Span(0, len(text)))
        elif not spans and readable.strip(b"\0"):
            spans.append(Span(0, 0))
    start = slot.span.start
    return [Part(slot, Span(start + span.start, start + span.end)) for span in spans]


def is_shown(part: Part, surroundings: Surroundings) -> bool:
    """Whether the right value stands elsewhere in the test, from which it could be guessed."""
    text = part.text(surroundings.source)
    if part.slot.kind in ("number", "scaled_number"):
        return text in surroundings.shown
    tokens = [token.lower() for token in _TOKEN.findall(text)]
    return any(token in surroundings.shown for token in tokens)


def other_values(part: Part, surroundings: Surroundings, random: Random, count: int) -> list[bytes]:
    """Return up to `count` other values for a part: first and second half are in random order.

    If the right value stands elsewhere in the test, so do as many of the others as possible.
    """
    key = (part.slot.kind, part.slot.highest, part.text(surroundings.source), count)

    def make_values() -> list[bytes]:
        return _new_values(part, surroundings, random, count)

    values = surroundings.known_values.get(key, make_values)
    if part.slot.kind == "fixed" or not is_shown(part, surroundings):
        return values
    shown_values = _values_shown(part, surroundings)
    if len(values) < count:
        return [*values, *(value for value in shown_values if value not in values)][:count]
    random.shuffle(shown_values)
    middle = count // 2
    hidden_values = [value for value in values if value not in shown_values]
    first = [*shown_values[::2], *hidden_values[: len(hidden_values) // 2]][:middle]
    second = [*shown_values[1::2], *hidden_values[len(hidden_values) // 2 :]][: count - middle]
    return [*first, *second]


def is_common(part: Part, source: bytes) -> bool:
    """Whether the right value is one of a few that many tests expect: a digit, a separator."""
    text = part.text(source)
    return part.slot.kind != "fixed" and (len(text) == 1 or not text.strip(_NOT_IN_NAMES))


def _values_shown(part: Part, surroundings: Surroundings) -> list[bytes]:
    """Return values that stand elsewhere in the test, and could be what is expected."""
    old = part.text(surroundings.source)
    if old[:1].isdigit():
        numbers = surroundings.shown & surroundings.all_numbers
        return sorted(number for number in numbers if _is_alike(number, old))
    if not WORD.fullmatch(old) or part.slot.kind == "phrase":
        return []
    words = surroundings.shown & surroundings.words
    return sorted(with_case_of(old, word) for word in words if word != old.lower())


def _new_values(part: Part, surroundings: Surroundings, random: Random, count: int) -> list[bytes]:
    slot = part.slot
    old = part.text(surroundings.source)
    if slot.kind == "fixed":
        return random.sample(slot.alternatives, min(count, len(slot.alternatives)))
    if slot.kind == "number":
        highest = _highest(slot, old, surroundings)
        return _other_numbers(old, surroundings.numbers, random, count, highest)
    if slot.kind == "scaled_number":
        return _other_scaled_numbers(old, random, count)
    return _other_texts(part, surroundings, random, count)


def _highest(slot: Slot, text: bytes, surroundings: Surroundings) -> int | None:
    """Return the largest number that may stand in a slot; None if it does not matter.

    Where nothing else is known, it is that of the smallest type that can hold the right number.
    """
    digits = text.replace(b"_", b"")
    if slot.highest is not None or not surroundings.has_small_types or not digits.isdigit():
        return slot.highest
    value = int(digits[:_MAX_DECIMALS])
    return next((highest for highest in _HIGHEST_OF_TYPES if highest >= value), None)


def edit_part(part: Part, value: bytes, source: bytes) -> list[Edit]:
    """Return the edits after which a part has another value, also in messages that repeat it."""
    old = part.text(source)
    edits = [Edit(*part.span, value)]
    if not old:
        return edits
    pattern = re.compile(rb"(?<![\w.])" + re.escape(old) + rb"(?![\w.])")
    for echo in part.slot.echoes:
        matches = pattern.finditer(source, echo.start, echo.end)
        edits += [Edit(match.start(), match.end(), value) for match in matches]
    return edits


def _other_texts(part: Part, surroundings: Surroundings, random: Random, count: int) -> list[bytes]:
    span = part.slot.span
    old = part.text(surroundings.source)
    if old[:1].isdigit():
        return _other_numbers(old, surroundings.numbers, random, count)
    if not old:
        return surroundings.pool.sample(b"word", b"", random, count)
    if not old[:1].isalpha():
        is_separator = old in _SEPARATORS or part.span != span
        others = _other_separators if is_separator else _other_punctuation
        return others(old, random, count)
    text = surroundings.source[span.start : span.end]
    if part.slot.kind == "phrase" and len(WORD.findall(text)) < _MANY_WORDS:
        return _nonsense(old, random, count)
    if len(old) == 1:
        return _other_letters(old, random, count)
    values = surroundings.pool.sample(old, text, random, count)
    if len(values) < count:
        values += [other for other in _nonsense(old, random, count) if other not in values]
    return values[:count]


def _other_separators(text: bytes, random: Random, count: int) -> list[bytes]:
    others = [separator for separator in _SEPARATORS if separator != text]
    return random.sample(others, min(count, len(others)))


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
    first = b"A"[0] if letter.isupper() else b"a"[0]
    others = [bytes([first + index]) for index in range(26)]
    others.remove(letter)
    return random.sample(others, min(count, len(others)))


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
        letters = random.sample(_CONSONANTS, min(count, len(_CONSONANTS)))
        values = [text + bytes([letter]) for letter in letters]
    return values


def _other_numbers(
    text: bytes,
    seen: Counter[bytes],
    random: Random,
    count: int,
    highest: int | None = None,
) -> list[bytes]:
    """Return numbers of the same form near this one.

    The right one must not stand out: it has a random rank, and all of them end in as many zeros.
    If it can be seen elsewhere in the file, as many others as possible can be, too, and as often;
    if not, none.
    """
    match = _match_number(text)
    if match is None:
        return []
    if match["rest"][:1] in (b"x", b"X", b"b", b"o") and match["digits"] == b"0":
        return _other_hex_numbers(text, random, count)
    digits = match["digits"]
    significant = _significant_digits(digits, has_limit=highest is not None)
    head, tail = digits[:significant][-_MAX_DIGITS:], digits[significant:]
    prefix = digits[: significant - len(head)]

    def with_head(value: int) -> bytes:
        return match["sign"] + prefix + _like(head, value) + tail + match["rest"]

    value = int(head.replace(b".", b"").replace(b"_", b""))

    def is_eligible(other: int) -> bool:
        if other == value:
            return True
        number = with_head(other)
        is_alike = text in seen or number not in seen
        return is_alike and _is_possible(number, highest)

    eligible = list(filter(is_eligible, _numbers_near(head, value, count, has_tail=bool(tail))))
    near = [with_head(other) for other in _window(eligible, value, random, count)]
    if text not in seen:
        return near
    alike = [number for number in seen if _is_alike(number, text)]
    alike = [number for number in alike if _is_possible(number, highest)]
    values = random.sample(sorted(alike), len(alike))
    # Those that are used at least as often come first.
    values.sort(key=lambda number: max(0, seen[text] - seen[number]))
    values = values[:count]
    values += [number for number in near if number not in values]
    chosen = values[:count]
    random.shuffle(chosen)
    return chosen


def _significant_digits(digits: bytes, *, has_limit: bool) -> int:
    """Return how many digits come before the last one that can be changed, with a dot."""
    if has_limit and digits.isdigit():
        return len(digits)  # a larger step could be too large
    if b"." in digits and not digits.rpartition(b".")[2].strip(b"0"):
        return len(digits.partition(b".")[0].rstrip(b"0")) or 1
    return len(digits.rstrip(b"0._")) or len(digits)


def _is_possible(number: bytes, highest: int | None) -> bool:
    digits = re.match(rb"-?([0-9_]+)", number)
    return highest is None or digits is None or int(digits[1].replace(b"_", b"")) <= highest


def _match_number(text: bytes) -> re.Match[bytes] | None:
    match = _NUMBER.fullmatch(text)
    if match is None or not match["digits"].replace(b"_", b"").replace(b".", b"").isdigit():
        return None
    return match


def _is_alike(number: bytes, text: bytes) -> bool:
    both_plain = number.isdigit() and text.isdigit()
    has_zeros = number.endswith(b"0") == text.endswith(b"0")
    return both_plain and abs(len(number) - len(text)) < 2 and has_zeros and number != text


def _numbers_near(head: bytes, value: int, count: int, *, has_tail: bool) -> list[int]:
    """Return the numbers, in order, that can stand in place of the digits of another."""
    distance = _SMALL_RANGE * count
    lowest, highest = (1 if has_tail else 0), value + distance
    if not _is_plain(head):
        width = len(re.sub(rb"[._]", b"", head))
        lowest, highest = 1, 10**width - 1
        if not head.startswith(b"0"):
            lowest = 10 ** (width - 1)
    first, last = max(lowest, value - distance), min(highest, value + distance)
    # 20 and 30 would not look like 23.
    is_small = value < _SMALL
    return [n for n in range(first, last + 1) if n % 10 or n == value or is_small]


def _is_plain(head: bytes) -> bool:
    """Whether a number can become longer or shorter."""
    return head.isdigit() and len(head) < _MAX_DIGITS and (head[:1] != b"0" or len(head) == 1)


def _window(eligible: Sequence[int], value: int, random: Random, count: int) -> list[int]:
    """Return some of the numbers around a value, among which it has a random rank."""
    index = eligible.index(value) if value in eligible else 0
    # Small numbers are likely to be expected. So decoys are all that are near.
    spare = 0 if value <= count else count // 2
    size = min(len(eligible), count + spare + 1)
    start = index - random.randrange(size)
    start = max(0, min(start, len(eligible) - size))
    others = [other for other in eligible[start : start + size] if other != value]
    return random.sample(others, min(count, len(others)))


def _like(head: bytes, value: int) -> bytes:
    """Return a number with the dots and underscores of another."""
    if _is_plain(head):
        return str(value).encode()
    width = len(re.sub(rb"[._]", b"", head))
    digits = list(str(value).zfill(width).encode())
    return bytes(digits.pop(0) if chr(character).isdigit() else character for character in head)


def _other_scaled_numbers(text: bytes, random: Random, count: int) -> list[bytes]:
    """Return numbers that differ from this one by more than any usual tolerance."""
    match = _match_number(text)
    if match is None:
        return []
    digits = match["digits"]
    significant = digits.lstrip(b"0._")
    prefix = digits[: len(digits) - len(significant)]
    head = re.match(rb"[0-9]\.?[0-9]", significant)
    if head is None:
        value = int(digits.replace(b".", b"").replace(b"_", b""))
        eligible = list(range(1, _SMALL_RANGE * count))
        texts = [_like(digits, other) for other in _window(eligible, value, random, count)]
    else:
        value = int(head[0].replace(b".", b""))
        eligible = list(range(10 + (value - 10) % _SCALED_STEP, 100, _SCALED_STEP))
        others = _window(eligible, value, random, count)
        texts = [prefix + _like(head[0], other) + significant[head.end() :] for other in others]
    return [match["sign"] + other + match["rest"] for other in texts]


def _other_hex_numbers(text: bytes, random: Random, count: int) -> list[bytes]:
    """Return numbers with another last digit."""
    alphabet = {b"b": b"01", b"o": b"01234567"}.get(text[1:2].lower(), b"0123456789abcdef")
    body = re.match(rb"0[A-Za-z][0-9A-Fa-f_]+", text)
    if body is None:
        return []
    last = text[body.end() - 1 : body.end()]
    others = [bytes([digit]) for digit in alphabet if bytes([digit]) != last.lower()]
    if last.isupper():
        others = [other.upper() for other in others]
    chosen = random.sample(others, min(count, len(others)))
    return [text[: body.end() - 1] + digit + text[body.end() :] for digit in chosen]
