"""Mutations of lines, bytes, JSON and pickles. All draw from a generator of random numbers: a seed repeats a case."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

NUMBER = re.compile(rb"0x[0-9a-fA-F]+|[0-9]+(?:\.[0-9]+)?")
WORD = re.compile(rb"[^\s]+")
# Numbers at and beyond the bounds of every dtype, and texts that some languages read as numbers.
NUMBERS = (
    b"0", b"-1", b"1", b"127", b"128", b"255", b"256", b"32767", b"32768", b"65535", b"65536", b"1999999999",
    b"2147483647",
    b"2147483648", b"-2147483648", b"-2147483649", b"4294967295", b"4294967296", b"1099511627776",
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"1" + b"0" * 40,
    b"9" * 400, b"0x7fffffffffffffff", b"0xffffffffffffffff", b"0x" + b"f" * 40, b"nan", b"inf", b"-inf", b"1e400",
    b"-0", b"0.0", b"007", "\u0663".encode(), "\u00b2".encode(), b"1_000", b"+5", b"1.5", b"-", b"",
)  # fmt: skip
PIECES = (
    b"\x00", b"\x1b[31m", b"\x1b]0;title\x07", b"\r", b"\t", b"\x7f", b"\x80", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80",
    "\u202e".encode(), "\u200b".encode(), "\ufeff".encode(), "\U000e0041".encode(), "\u2028".encode(), b"<", b">", b"&",
    b"'", b'"', b"`", b"|", b"\\", b"%s", b"{}", b"${x}", b"[", b"]", b"(", b")", b"[bold]", b"[/]", b":", b"::", b";",
    b"/", b"//", b"../", b"file:///etc/passwd", b"<script>alert(1)</script>", b"](javascript:x)", b"-", b"--", b"\n",
    b"\n\n", b" NCCL INFO ", b" NCCL WARN ", b"|||", b"=",
)  # fmt: skip
# Letters and digits that look like others, and spaces that are none.
CONFUSABLES = {
    b"a": "\u0430", b"e": "\u0435", b"o": "\u043e", b"c": "\u0441", b"p": "\u0440", b"i": "\u0456", b"N": "\u039d",
    b"C": "\u0421", b"L": "\u216c", b"0": "\uff10", b"1": "\u0661", b"2": "\u00b2", b"9": "\u096f", b"-": "\u2212",
    b" ": "\u00a0", b":": "\uff1a", b"[": "\uff3b", b"/": "\u2215", b"x": "\u00d7", b".": "\u2024",
}  # fmt: skip
LONG_LINE = 100_000
MOST_REPEATS = 3_000


class Draw(Random):
    """Random numbers, and how many lines were mutated with them."""

    mutated = 0


def number(draw: Random, old: bytes) -> bytes:
    """Another number, mostly near the old one, since most relations are between small numbers."""
    if draw.random() < 0.5 and old.isdigit() and len(old) < 18:
        return b"%d" % (int(old) + draw.choice((-2, -1, 1, 2, 7, 100)))
    if draw.random() < 0.3:
        return b"%d" % draw.randrange(10)
    return draw.choice(NUMBERS)


def _substitute(draw: Random, line: bytes, pattern: re.Pattern[bytes], new: Callable[[bytes], bytes]) -> bytes:
    found = list(pattern.finditer(line))
    if not found:
        return line
    chosen = draw.choice(found)
    return line[: chosen.start()] + new(chosen[0]) + line[chosen.end() :]


def _place(draw: Random, line: bytes) -> int:
    return draw.randrange(len(line) + 1)


def _insert(draw: Random, line: bytes) -> bytes:
    at = _place(draw, line)
    return line[:at] + draw.choice(PIECES) + line[at:]


def _cut(draw: Random, line: bytes) -> bytes:
    return line[: _place(draw, line)]


def _cut_before(draw: Random, line: bytes) -> bytes:
    return line[_place(draw, line) :]


def _repeat(draw: Random, line: bytes) -> bytes:
    first, last = sorted((_place(draw, line), _place(draw, line)))
    piece = line[first : min(last, first + 60)]
    times = min(draw.choice((2, 3, 20, MOST_REPEATS)), LONG_LINE // max(len(piece), 1))
    return line[:last] + piece * times + line[last:]


def _flip(draw: Random, line: bytes) -> bytes:
    changed = bytearray(line)
    for _ in range(draw.choice((1, 1, 3, 10)) if line else 0):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


def _swap(draw: Random, line: bytes, pattern: re.Pattern[bytes]) -> bytes:
    """Two columns of a table, or two numbers, in each other's place."""
    found = list(pattern.finditer(line))
    if len(found) < 2:
        return line
    first, last = sorted(draw.sample(found, 2), key=lambda match: match.start())
    between = line[first.end() : last.start()]
    return line[: first.start()] + last[0] + between + first[0] + line[last.end() :]


def _confuse(draw: Random, line: bytes) -> bytes:
    """One kind of letter, or all, by another that looks alike."""
    present = [letter for letter in CONFUSABLES if letter in line]
    for letter in present if draw.random() < 0.1 else draw.sample(present, min(len(present), 1)):
        line = line.replace(letter, CONFUSABLES[letter].encode(), draw.choice((1, -1)))
    return line


def mutate_line(draw: Draw, line: bytes, others: Sequence[bytes]) -> bytes:
    """One line with a fault; `others`: lines that parts are taken from."""
    draw.mutated += 1
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        kind = draw.randrange(19)
        if kind < 6:
            line = _substitute(draw, line, NUMBER, lambda old: number(draw, old))
        elif kind == 6:
            line = _insert(draw, line)
        elif kind == 7:
            line = _cut(draw, line)
        elif kind == 8:
            line = _cut_before(draw, line)
        elif kind == 9:
            line = _flip(draw, line)
        elif kind == 10:
            word = draw.choice(WORD.findall(draw.choice(others)) or [b""])
            line = _substitute(draw, line, WORD, lambda _, word=word: word)
        elif kind == 11:
            line = _substitute(draw, line, WORD, lambda old: b"")
        elif kind == 12:
            line = _cut(draw, line) + _cut_before(draw, draw.choice(others))
        elif kind == 13:
            line = _cut(draw, line) + draw.choice(others) + _cut_before(draw, line)  # torn
        elif kind == 14 and draw.random() < 0.2:
            line = _repeat(draw, line)
        elif kind == 15:
            line = _swap(draw, line, WORD)
        elif kind == 16:
            line = _swap(draw, line, NUMBER)
        elif kind == 17:
            line = _confuse(draw, line)
        else:
            line = _substitute(draw, line, WORD, lambda old: old + b" " + old)
    return line


def mutate_lines(draw: Draw, lines: list[bytes], others: Sequence[bytes], share: float) -> list[bytes]:
    """A file with faults in a share of its lines, and in their order."""
    lines = [mutate_line(draw, line, others) if draw.random() < share else line for line in lines]
    for _ in range(draw.choice((0, 0, 1, 3))):
        first, last = sorted((draw.randrange(len(lines) + 1), draw.randrange(len(lines) + 1)))
        block = lines[first:last]
        kind = draw.randrange(4)
        if kind == 0:
            lines = lines[:first] + lines[last:]
        elif kind == 1:
            lines = lines[:last] + block[: draw.choice((1, 50))] * draw.choice((1, 2, 10)) + lines[last:]
        elif kind == 2:
            draw.shuffle(block)
            lines = lines[:first] + block + lines[last:]
        else:
            lines = lines[last:] + block + lines[:first]
    if draw.random() < 0.3:  # one number everywhere: a rank, a size, a pid
        found = NUMBER.findall(draw.choice(lines)) if lines else []
        if found:
            old = draw.choice(found)
            new = number(draw, old)
            pattern = re.compile(rb"(?<![0-9A-Za-z])" + re.escape(old) + rb"(?![0-9A-Za-z])")
            lines = [pattern.sub(lambda _: new, line) for line in lines]
    return lines


def mutate_bytes(draw: Random, data: bytes) -> bytes:
    """A file that is cut, has bytes changed, or is put together wrongly."""
    kind = draw.randrange(8)
    if kind == 0:
        return data[: draw.randrange(len(data) + 1)]
    if kind == 1:
        return data[draw.randrange(min(len(data), 40) + 1) :]
    if kind == 2:
        return data + data
    if kind == 3:
        return data.decode("utf-8", "replace").encode(draw.choice(("utf-16", "utf-16-le", "utf-32")))
    if kind == 4:
        return data.replace(b"\n", draw.choice((b"\r\n", b"\r", b"\n\n\n", b"\0", b" ", b"\\n")))
    if kind == 5:
        at = draw.randrange(len(data) + 1)
        return data[:at] + draw.randbytes(draw.choice((1, 8, 300))) + data[at:]
    if kind == 6:
        at = draw.randrange(len(data) + 1)
        return data[:at] + data[at + draw.choice((1, 2, 50, 2000)) :]
    return _flip(draw, data)


ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**31 - 1, -(2**31) - 1, 2**40, 2**63 - 1, 2**63, 2**64, 10**40, 1.5, -0.0,
    1e308, float("inf"), float("nan"), "", "0", "-1", "99999999999999999999", "nan", "\x00", "\x1b[31m", "\u202e",
    "\ud800", "x" * 5000,
    "[0, 1, 2, 3]", "[99999999999]", "0-99999999999", [], {}, [None], [[]], [{}], {"": None},
    ["a", 1, None],
)  # fmt: skip


def mutate_value(draw: Random, value: Any, share: float) -> Any:
    """A JSON value in which each part is something else with the probability `share`."""
    if draw.random() < share:
        kind = draw.randrange(6)
        if kind == 0 and isinstance(value, int) and not isinstance(value, bool):
            return value + draw.choice((-1, 1, 2, 100))
        if kind == 1:
            nested: Any = value
            for _ in range(draw.choice((1, 3, 100, 2000))):
                nested = [nested] if draw.random() < 0.5 else {"a": nested}
            return nested
        if kind == 2 and isinstance(value, list):
            return value * draw.choice((0, 2, 5)) if len(value) < 2000 else []
        if kind == 3:
            return str(value)[:10_000]
        return draw.choice(ODD_VALUES)
    if isinstance(value, dict):
        return {
            (key if draw.random() > share / 2 else draw.choice(("", "x", "ranks", "0", key + "x"))): mutate_value(
                draw, part, share
            )
            for key, part in value.items()
            if draw.random() > share / 2
        }
    if isinstance(value, list | tuple):
        parts = [mutate_value(draw, part, share) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value
