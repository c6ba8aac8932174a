"""Shorten cited lines to what they report: without the prefix of NCCL, pointers, and paths of source files."""

from __future__ import annotations

import json

from ncclforensics.data.names import REDUCTIONS, WITH_ROOT

MARKERS = ("NCCL WARN", "NCCL ATTN", "NCCL INFO", "NVRM: Xid")  # behind them NCCL or the driver reports something
DROPPED = ("NCCL INFO",)  # of these, those that say nothing themselves
POINTERS = ("0x", "(nil)")
OWN_COUNT = "opCount"  # NCCL's number of a call, which is no position in most versions
ONLY_OF = {"root": WITH_ROOT, "op": REDUCTIONS}  # arguments that NCCL prints of all calls, though few have them
SOURCE_FILES = ("[/",)  # in brackets
SIDE_NOTES = (*SOURCE_FILES, "[nranks=")  # and the size of the communicator
ORIGIN = ("journal", "time", "host", "pid", "rank", "comm", "commid")  # of a line of JSON
SEVERITIES = ("[E", "[W", "[I", "[F", "[C", "ERROR ", "WARNING ", "INFO ")
LOGGED_FROM = (".cpp:", ".cc:", ".hpp:", ".py:")  # the source file in the prefix of PyTorch and Python programs
LEFT_OUT = "…"
# Parts of words that say how something failed.
DECISIVE = ("ERR", "status=", "error", "OpType=", "isabled", "closed", "refused", "reset")
EQUALS = ("=", "==")  # between a name and its value
EQUALS_BEFORE = tuple(f" {sign}" for sign in EQUALS)
ERROR = "error: "  # behind it stands the reason
LONG_WORDS, SHORT_WORD = 3, 18  # no word takes more than a third, and none of this length is shortened
ENDS_OF_CLAUSES = (",", ";", ".", ")")
DOTS = 3  # of an IPv4 address
SHARE_OF_END = 0.45  # of a line that is cut in its middle


def condensed(line: str, longest: int) -> str:
    """Return a line; one that is longer than this without what few readers need, each gap marked by an ellipsis.

    >>> condensed("a:1:1 [0] NCCL INFO Bcast: opCount 1 sendbuff 0x7f buff 0x8f count 4", 40)
    '… Bcast: … count 4'
    >>> condensed("RuntimeError: [/src/tcp/pair.cc:553] Connection closed by peer", 40)
    'RuntimeError: … Connection closed by peer'
    >>> condensed("[E1122 08:57:17.18 ProcessGroupGloo.cpp:9] Rank 2 timed out in 15 ms. Look at all logs.", 40)
    '… Rank 2 timed out in 15 ms. …'
    >>> condensed("(Worker pid=39) ERROR 01-15 02:47:32 utils.py:226] Error while creating a segment", 40)
    '… Error while creating a segment'
    >>> condensed("a:1:1 [0] NCCL INFO AllGather: opCount 1 sendbuff 0x7f count 4 datatype 9 op 0 root 0", 40)
    '… AllGather: … count 4 datatype 9 …'
    >>> condensed('{"time":"11:04:57","host":"a","pid":7,"rank":0,"call":6,"name":"AllReduce","count":4}', 40)
    '… call 6 name AllReduce count 4'
    """
    line = line.strip()
    if len(line) <= longest:
        return line
    if fields := _fields(line):
        return fields
    message = _from_message(_first_sentence(line)).split()
    others = [word for word, calls in ONLY_OF.items() if not any(f"{call}:" in message for call in calls)]
    unread = {OWN_COUNT, *others} if OWN_COUNT in message else set()
    return _without_pointers(message, unread, SIDE_NOTES)


def without_pointers(line: str) -> str:
    """Return the message of a line without pointers, each gap marked by an ellipsis.

    >>> without_pointers("a:1:1 [0] NCCL INFO Bcast: opCount 1 sendbuff 0x7f buff 0x8f count 4 [nranks=2]")
    '… Bcast: opCount 1 … count 4 [nranks=2]'
    """
    return _without_pointers(_from_message(line).split(), set(), SOURCE_FILES)


def _without_pointers(message: list[str], unread: set[str], side_notes: tuple[str, ...]) -> str:
    """Join words without pointers and their names, the values of `unread` names, and notes in brackets."""
    words: list[str] = []
    for word in message:
        if (words and words[-1] in unread) or (word.startswith(POINTERS) and words and _is_name(words[-1])):
            words[-1:] = [LEFT_OUT]  # the pointer and its name
        elif word.startswith(POINTERS):
            words.append(LEFT_OUT)
        else:
            is_note = word.startswith(side_notes) or (word.startswith("[") and "::" in word)  # a function of C++
            words.append(LEFT_OUT if is_note and word.endswith("]") else word)
    kept = [word for place, word in enumerate(words) if word != LEFT_OUT or words[place - 1 : place] != [LEFT_OUT]]
    return " ".join(kept)


def time_in_prefix(line: str) -> str:
    """Return the time of day in what stands before the message of a line, to the second; empty if there is none.

    >>> time_in_prefix("[2026-03-02 11:04:57.034] a:1:1 [0] NCCL INFO Bcast: count 4")
    '11:04:57'
    >>> time_in_prefix("2026-03-02T11:04:57.034Z a:1:1 [0] NCCL INFO Bcast: count 4")
    '11:04:57'
    >>> time_in_prefix("a:1:1 [0] NCCL INFO Bcast: count 4 11:04:57")
    ''
    """
    message = _from_message(line).removeprefix(LEFT_OUT)
    for word in line.removesuffix(message).split():
        clock = word.strip("[]()").rpartition("T")[2][: len("11:04:57")]
        if clock[2:6:3] == "::" and clock.replace(":", "").isdecimal() and len(clock) == len("11:04:57"):
            return clock
    return ""


def cut(text: str, longest: int) -> str:
    """Return a text that is cut between two words, with an ellipsis, if it is longer than this.

    >>> cut("closed by the remote peer", 16)
    'closed by the …'
    """
    if len(text) <= longest:
        return text
    return f"{text[: max(text.rfind(' ', 0, longest), 1)]} {LEFT_OUT}"


def cut_middle(text: str, longest: int) -> str:
    """Return a text of at most this length: between its beginning and its end, which decide, words are left out.

    >>> cut_middle("Duplicate GPU detected : rank 6 and rank 7 both on CUDA device 4000", 44)
    'Duplicate GPU detected … CUDA device 4000'
    >>> cut_middle("Got completion from peer 10.0.0.1 with status=12 opcode=129 len 0 (Send) hca mlx5_3", 44)
    'Got completion from peer … status=12'
    >>> cut_middle("ERROR:torch.distributed.elastic.api:failed (exitcode: -9) of binary: /data/envs/bin/python", 58)
    '…lastic.api:failed (exitcode: -9) of … …a/envs/bin/python'
    >>> cut_middle("RuntimeError: Connection closed by peer [10.11.0.10]:57231.", 44)
    'RuntimeError: Connection closed by peer …'
    >>> cut_middle("RuntimeError: Connection closed by peer [10.11.0.10]:57231.", 34)
    'RuntimeError: Connection closed …'
    >>> cut_middle("Timeout at NCCL work: 1, last enqueued NCCL work: 1, last completed NCCL work: 93907630711664.", 44)
    'Timeout at NCCL work: 1, last enqueued …'
    >>> cut_middle("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", 44)
    'NET/IB : GPU Direct RDMA Disabled …'
    >>> cut_middle("Process group watchdog thread terminated: CUDA error: an illegal memory access was met", 60)
    'Process group watchdog thread … error: an illegal'
    >>> cut_middle("port 5: [SymbolErrorCounter == 41] [LinkDownedCounter == 2] [PortXmitWait == 84704351]", 44)
    'port 5: [SymbolErrorCounter == 41] …'
    >>> cut_middle("port 5: [PortXmitWait == 319371411578 (319.371G)] [PortRcvPkts == 9000000000 (9.000G)]", 54)
    'port 5: [PortXmitWait == 319371411578 (319.371G)] …'
    >>> cut_middle("a" * 9, 6)
    'aa…aaa'
    >>> cut_middle("… ReduceScatter: … count 270336 datatype 9 op 0 …", 44)
    'ReduceScatter: count 270336 datatype 9 op 0'
    """
    for edge in (text, text.removesuffix(f" {LEFT_OUT}"), text.strip(f"{LEFT_OUT} ")):
        if len(edge) <= longest:
            return edge
    text = text.strip(f"{LEFT_OUT} ")
    event, _, end = text.rpartition(" ")
    if _is_address(end):
        text = event
        if len(text) + 2 <= longest:
            return f"{text} {LEFT_OUT}"
    without_gaps = text.replace(f" {LEFT_OUT} ", " ")
    if len(without_gaps) <= longest:
        return without_gaps
    room = longest - len(f" {LEFT_OUT} ")
    words, tail = [_end_of(word, max(room // LONG_WORDS, SHORT_WORD)) for word in _pieces(text)], list[str]()
    if len(" ".join(words)) <= longest:
        return " ".join(words)
    while words and len(" ".join([words[-1], *tail])) <= room * SHARE_OF_END:
        tail.insert(0, words.pop())
    if words and _has_loose_number(words[-1], tail):
        tail = []
    head = _fitting(words, room - len(" ".join(tail)))
    left = words[len(head) :]
    at = next((place for place, word in enumerate(left) if any(part in word for part in DECISIVE)), None)
    decisive = left[at : at + 1] if at is not None else []
    if at is not None and left[at].endswith(":"):  # the reason stands behind it
        decisive = _fitting(left[at:], int(room * SHARE_OF_END)) or decisive
    if decisive and (longer := _fitting(words, room - len(" ".join(decisive)))):
        tail = [] if decisive[0] in longer else decisive
        is_next = words[len(longer) : len(longer) + 1] == tail  # nothing is left out before it
        head, tail = ([*longer, *tail], []) if is_next else (longer, tail)
    if head:
        return " ".join([*head, LEFT_OUT, *tail])
    return text[: (longest - 1) // 2] + LEFT_OUT + text[-(longest // 2) :]


def _has_loose_number(before: str, tail: list[str]) -> bool:
    """Whether an end holds a number of whose name only a part is left: it would read as that of another one.

    `before`: the last word that is left out.
    """
    is_in_clause = not before.endswith(ENDS_OF_CLAUSES)
    named = zip([before, *tail], tail, strict=False)
    return is_in_clause and any(name.endswith(":") and value.strip(".,").isdecimal() for name, value in named)


def _pieces(text: str) -> list[str]:
    """Split a text into its words; a name stays with its value, which would else stand behind another name."""
    pieces: list[str] = []
    for word in text.split(" "):
        before = pieces[-1] if pieces else ""
        is_open = before.startswith("[") and " " in before and not before.endswith("]")  # a unit follows the value
        if before and (is_open or word in EQUALS or before.endswith(EQUALS_BEFORE)):
            pieces[-1] += f" {word}"
        else:
            pieces.append(word)
    return pieces


def _end_of(word: str, longest: int) -> str:
    """Return a long word, such as a path, without its beginning; a name with its value as it is."""
    return word if len(word) <= longest or " " in word else LEFT_OUT + word[1 - longest :]


def _fitting(words: list[str], room: int) -> list[str]:
    """Return the first words that fit, without signs at their end."""
    head: list[str] = []
    for word in words:
        if len(" ".join([*head, word])) > room:
            break
        head.append(word)
    while head and not _has_letters(head[-1]):
        head.pop()
    return head


def _fields(line: str) -> str:
    """Return the names and values of a line that is a JSON object, without those of its origin; empty for others."""
    if not (line.startswith("{") and line.endswith("}")):
        return ""
    try:
        fields = json.loads(line)
    except ValueError:
        return ""
    words = " ".join(f"{name} {value}" for name, value in fields.items() if name not in ORIGIN).split()
    return " ".join([LEFT_OUT, *words])


def _first_sentence(line: str) -> str:
    """Return the first sentence of a message, which says what happened, unless the error stands behind it."""
    sentence, end, rest = line.partition(". ")
    is_sentence = end and rest[:1].isupper() and _has_letters(sentence) and " " in sentence and ERROR not in rest
    return f"{sentence}. {LEFT_OUT}" if is_sentence else line


def _from_message(line: str) -> str:
    """Return the line from its marker on, if something follows it."""
    for name in LOGGED_FROM:
        head, mark, rest = line.partition(name)
        is_logged = any(severity in head for severity in SEVERITIES) or (head[:1] in "EWI" and head[1:5].isdecimal())
        is_logged = is_logged and not any(marker in head for marker in MARKERS)
        message = rest.partition("]")[2].strip()
        is_function = message.startswith("[") and " " not in message  # the place stands behind the message
        if mark and is_logged and _has_letters(message) and not is_function:
            return f"{LEFT_OUT} {message}"
    places = [(line.find(marker), marker) for marker in MARKERS]
    found = [(place, marker) for place, marker in places if place > 0 and _has_letters(line[place + len(marker) :])]
    if not found:
        return line
    place, marker = min(found, key=lambda mark: (mark[1] in DROPPED, mark))  # of lines that were joined, a warning
    return f"{LEFT_OUT} {line[place + len(marker) if marker in DROPPED else place :].strip()}"


def _is_address(word: str) -> bool:
    """Whether a word is an IPv4 address and a port, which say less than what happened."""
    return word.count(".") >= DOTS and ":" in word and not _has_letters(word.strip("0123456789.:[]"))


def _is_name(word: str) -> bool:
    """Whether a word names the value behind it: no part of a sentence, such as one in brackets."""
    return word.rstrip(":=,").replace("-", "_").isidentifier()


def _has_letters(text: str) -> bool:
    return any(letter.isalnum() for letter in text)
