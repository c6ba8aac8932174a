"""Read a pickle of plain data without executing it: texts, numbers, lists, dicts and tuples, and nothing else.

A pickle is a program, and unpickling one from elsewhere runs it. Here every instruction is looked at first. Only if
all of them are known, and no memo index is larger than the file (python/cpython#115952: 10 bytes took gigabytes), does
CPython's unpickler run, which refuses every class besides. In all other cases `walk` follows the instructions one by
one, as far as it knows them, and returns what was complete before: of a file that is cut off, or of its head alone.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
from dataclasses import dataclass, field
from struct import unpack_from
from typing import Any

from ncclforensics.inputs.lines import PICKLE_STARTS

MOST_BYTES = 64 << 20  # of a pickle that CPython's unpickler reads
MOST_CONTAINERS = 1 / 4  # of its bytes: an empty list of one byte takes 64 bytes of memory
MOST_VALUES = 8_000_000  # that are walked; an entry of a Flight Recorder has 50 to 200 of them
MOST_DEPTH = 64
LONGEST_INTEGER = 16  # bytes
LONGEST_INSTRUCTION = 9  # bytes, without texts
# What malformed instructions raise: no value on the stack, an unknown memo index, a cut argument, a list as a key.
MALFORMED = (IndexError, KeyError, TypeError, ValueError, AttributeError)

# A run of instructions without a text and without a memo index of 2^20 or more, which are checked one by one.
_INTEGERS = b"|".join(re.escape(bytes([0x8A, length])) + b".{%d}" % length for length in range(LONGEST_INTEGER + 1))
_PLAIN_RUN = re.compile(
    rb"(?:[hKq].|[(\]}euNt)as\x85-\x89\x94]|[jJ].{4}|M..|r..[\x00-\x0f]\x00|G.{8}|\x95.{8}|" + _INTEGERS + rb")*+",
    re.DOTALL,
)
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_CONSTANTS = {0x4E: None, 0x88: True, 0x89: False}  # NONE, NEWTRUE, NEWFALSE


class _EndError(Exception):
    """The walk cannot go on; the text says why."""


@dataclass(slots=True)
class Walk:
    """The outcome: the value as far as it was complete, and where and why the walk ended early."""

    value: Any = None
    problem: str = ""
    at_key: bool = False  # it ended before the value of the key `until`


@dataclass(slots=True)
class _State:
    stack: list[Any] = field(default_factory=list)
    marked: list[list[Any]] = field(default_factory=list)  # the stacks below each mark
    memo: dict[int, Any] = field(default_factory=dict)
    position: int = 0
    is_at_key: bool = False


class _NoClasses(pickle.Unpickler):
    """CPython's unpickler without classes and persistent objects."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Refuse. Raises UnpicklingError."""
        raise pickle.UnpicklingError(f"a pickle of plain data needs no {module_name}.{global_name}")

    def persistent_load(self, pid: Any) -> Any:
        """Refuse. Raises UnpicklingError."""
        raise pickle.UnpicklingError("a pickle of plain data holds no persistent object")


def load(data: bytes) -> Walk:
    """Return the value of a pickle: of a damaged one, what is complete."""
    if _is_plain(data):
        is_collecting = gc.isenabled()
        gc.disable()  # it would look at all the new values again and again
        try:
            return Walk(_NoClasses(io.BytesIO(data)).load())
        except (pickle.UnpicklingError, EOFError, OverflowError, MemoryError, *MALFORMED):
            pass  # the walk finds the place
        finally:
            if is_collecting:
                gc.enable()
    return walk(data)


def _is_plain(data: bytes) -> bool:
    """Whether a pickle holds only instructions that make plain data, up to its end."""
    size = len(data)
    if not data.startswith(PICKLE_STARTS) or size > MOST_BYTES:
        return False
    if data.count(b"]") + data.count(b"}") + data.count(b"(") > MOST_CONTAINERS * size:
        return False
    position = 2
    while True:
        run = _PLAIN_RUN.match(data, position)
        position = run.end() if run else position
        code = data[position : position + 1]
        if code == b"X":
            position += 5 + int.from_bytes(data[position + 1 : position + 5], "little")
        elif code == b"\x8c":
            position += 2 + int.from_bytes(data[position + 1 : position + 2], "little")
        elif code == b"r" and int.from_bytes(data[position + 1 : position + 5], "little") < size:
            position += 5
        else:
            return code == b"."


def walk(data: bytes, until: str | None = None) -> Walk:
    """Return the value of a pickle. `until`: end before the value of this key of the outermost dict."""
    state = _State()
    try:
        return Walk(_run(data, state, until), at_key=state.is_at_key)
    except _EndError as reason:
        problem = str(reason)
    except MALFORMED:
        problem = "the pickle is malformed"
    if state.position + LONGEST_INSTRUCTION >= len(data):
        problem = "the pickle is cut off"
    return Walk(_salvage(state), f"{problem} at byte {state.position} of {len(data)}")


def _salvage(state: _State) -> Any:
    """Close the containers that were being filled, with what they hold; a value that is cut is left out."""
    while state.marked:
        items, state.stack = state.stack, state.marked.pop()
        container = state.stack[-1] if state.stack else None
        try:
            _fill(container, items)
        except MALFORMED:
            continue
    return state.stack[0] if state.stack else None


def _fill(container: Any, items: list[Any]) -> None:
    if isinstance(container, list):
        container.extend(items)
    elif isinstance(container, dict):
        container.update(zip(items[::2], items[1::2], strict=False))


def _run(data: bytes, state: _State, until: str | None) -> Any:
    """Walk the instructions, the frequent ones first. Raises _EndError and MALFORMED."""
    if not data.startswith(PICKLE_STARTS):
        raise _EndError("this is no pickle of protocol 2 to 5")
    stack, marked, memo = state.stack, state.marked, state.memo
    size, position, values = len(data), 2, 0
    while True:
        state.position = position
        state.stack = stack
        if position >= size:
            raise _EndError("the pickle is cut off")
        values += 1
        if values > MOST_VALUES:
            raise _EndError(f"the pickle holds more than {MOST_VALUES} values: the rest is left out")
        code = data[position]
        position += 1
        if code == 0x68:  # BINGET
            stack.append(memo[data[position]])
            position += 1
        elif code == 0x4B:  # BININT1
            stack.append(data[position])
            position += 1
        elif code == 0x28:  # MARK
            if len(marked) >= MOST_DEPTH:
                raise _EndError("the pickle is nested too deeply")
            marked.append(stack)
            stack = []
        elif code == 0x5D:  # EMPTY_LIST
            stack.append([])
        elif code == 0x65:  # APPENDS
            items = stack
            stack = marked.pop()
            stack[-1].extend(items)
        elif code == 0x71:  # BINPUT
            memo[data[position]] = stack[-1]
            position += 1
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == 0x6A:  # LONG_BINGET
            stack.append(memo[_integer(data, position, 4)])
            position += 4
        elif code == 0x72:  # LONG_BINPUT
            memo[_integer(data, position, 4)] = stack[-1]
            position += 4
        elif code == 0x4D:  # BININT2
            stack.append(_integer(data, position, 2))
            position += 2
        elif code == 0x4A:  # BININT
            stack.append(int.from_bytes(_bytes(data, position, 4), "little", signed=True))
            position += 4
        elif code == 0x75:  # SETITEMS
            items = stack
            stack = marked.pop()
            stack[-1].update(zip(items[::2], items[1::2], strict=True))
        elif code == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif code in (0x58, 0x8C):  # BINUNICODE, SHORT_BINUNICODE
            width = 4 if code == 0x58 else 1
            length = _integer(data, position, width)
            text = _bytes(data, position + width, length).decode("utf-8", "replace")
            position += width + length
            if text == until and len(marked) == 1 and len(stack) % 2 == 0 and isinstance(marked[0][-1], dict):
                state.stack, state.is_at_key = stack, True
                return _salvage(state)
            stack.append(text)
        elif code in _TUPLES:
            count = _TUPLES[code]
            if len(stack) < count:
                raise _EndError("the pickle is malformed")
            stack[-count:] = [tuple(stack[-count:])]
        elif code == 0x8A:  # LONG1
            length = data[position]
            if length > LONGEST_INTEGER:
                raise _EndError("the pickle holds a number that is too long")
            stack.append(int.from_bytes(_bytes(data, position + 1, length), "little", signed=True))
            position += 1 + length
        elif code == 0x47:  # BINFLOAT
            stack.append(unpack_from(">d", _bytes(data, position, 8))[0])
            position += 8
        elif code == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif code == 0x74:  # TUPLE
            items = stack
            stack = marked.pop()
            stack.append(tuple(items))
        elif code == 0x61:  # APPEND
            item = stack.pop()
            stack[-1].append(item)
        elif code == 0x73:  # SETITEM
            item, key = stack.pop(), stack.pop()
            stack[-1][key] = item
        elif code == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif code == 0x95:  # FRAME: only a hint for reading
            position += 8
        elif code == 0x2E:  # STOP
            return stack.pop()
        else:
            raise _EndError(
                f"the pickle holds the instruction 0x{code:02x}, which plain data does not need: not executed,"
            )


def _bytes(data: bytes, position: int, length: int) -> bytes:
    """The argument of an instruction. Raises _EndError if the file ends in it."""
    argument = data[position : position + length]
    if len(argument) < length:
        raise _EndError("the pickle is cut off")
    return argument


def _integer(data: bytes, position: int, length: int) -> int:
    return int.from_bytes(_bytes(data, position, length), "little")
