"""What people and machines do to logs before they are read: functions from the lines of files to the lines of files."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import zstandard

from ncclforensics.simulate.handling import RECORDS, TAGS, TIME
from ncclforensics.simulate.handling import Handling as Simulated

Logs = dict[str, list[bytes]]  # the pieces of each file, in order: lines, or the bytes of a compressed file
Handling = Callable[[Logs, random.Random], Logs]

CALL = re.compile(rb"NCCL (INFO|TRACE) [A-Za-z]+: opCount|NCCL CALL ")
PROCESS = re.compile(rb"^(\[?[^\n\[\]]{0,40}?)[\w.-]+:(\d+):(\d+) \[", re.MULTILINE)
LONGEST = 40  # lines in one stretch
OUTPUT = (  # what applications print between NCCL's lines
    b"[2026-11-21 03:14:15,202] [INFO] [engine.py:812] step=%d, skipped=0, lr=[3e-05], loss: 1.9302\n",
    b"\r %d%%|###       | 31/1000 [00:31<12:01, 1.3it/s]\n",
    b"iteration %8d/ 500000 | elapsed time per iteration (ms): 4211.3 | lm loss: 2.31E+00 |\n",
    b"rank %d: all_reduce of gradients took 0.113 s\n",
)


def read_logs(folder: Path, names: Iterable[str]) -> Logs:
    """The lines of files in a folder; `.gz` and `.zst` are decompressed and lose that ending."""
    logs: Logs = {}
    for name in names:
        data = (folder / name).read_bytes()
        match Path(name).suffix:
            case ".gz":
                data = gzip.decompress(data)
            case ".zst":
                data = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        logs[name.removesuffix(".gz").removesuffix(".zst")] = data.splitlines(keepends=True)
    return logs


def write_logs(logs: Logs, folder: Path) -> None:
    for name, pieces in logs.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"".join(pieces))


# What loses something.


def stretch(lines: list[bytes], draw: random.Random, longest: int) -> tuple[int, int]:
    """The first and the last line of a stretch that ends before the last call."""
    last_call = max((number for number, line in enumerate(lines) if CALL.search(line)), default=len(lines) - 1)
    first = draw.randrange(max(last_call, 1))
    return first, min(first + draw.randrange(1, longest + 1), last_call)


def without_stretch(logs: Logs, draw: random.Random, *, longest: int = LONGEST, mark: bytes = b"") -> Logs:
    name = draw.choice(sorted(logs))
    first, last = stretch(logs[name], draw, longest)
    return {**logs, name: logs[name][:first] + [mark] * bool(mark) + logs[name][last:]}


def without_line(logs: Logs, draw: random.Random) -> Logs:
    return without_stretch(logs, draw, longest=1)


def with_omissions(logs: Logs, draw: random.Random) -> Logs:
    """Lines are left out of every log, and a line says so."""
    for name in logs:
        part = without_stretch({name: logs[name]}, draw, mark=draw.choice([b"[...]\n", b"(12 lines omitted)\n"]))
        logs = {**logs, **part}
    return logs


def without_log(logs: Logs, draw: random.Random) -> Logs:
    absent = draw.choice(sorted(logs))
    return {name: lines for name, lines in logs.items() if name != absent}


def without_share(share: float) -> Handling:
    """This share of the logs is missing, at least one is there."""

    def handle(logs: Logs, draw: random.Random) -> Logs:
        left = max(1, len(logs) - round(share * len(logs)))
        return {name: logs[name] for name in sorted(draw.sample(sorted(logs), left))}

    return handle


def without_beginnings(logs: Logs, draw: random.Random) -> Logs:
    """Every log begins in the middle, each at another line."""
    return {name: lines[stretch(lines, draw, 1)[0] :] for name, lines in logs.items()}


def with_one_short_log(logs: Logs, draw: random.Random) -> Logs:
    """One log was copied earlier than the others."""
    name = draw.choice(sorted(logs))
    return {**logs, name: logs[name][: stretch(logs[name], draw, 1)[0]]}


def ends_only(logs: Logs, draw: random.Random) -> Logs:
    """As `kubectl logs --tail` or `tail` prints, of every log as many lines."""
    longest = max(1, draw.randrange(max(map(len, logs.values()))))
    return {name: lines[-longest:] for name, lines in logs.items()}


def first_halves(logs: Logs, draw: random.Random) -> Logs:
    """Copied while the job still ran."""
    return {name: lines[: len(lines) // 2] for name, lines in logs.items()}


def wrapped(logs: Logs, draw: random.Random) -> Logs:
    """Pasted into a box of 140 columns, which breaks longer lines."""
    return {
        name: [part for line in lines for part in ([line[:140] + b"\n", line[140:]] if len(line) > 141 else [line])]
        for name, lines in logs.items()
    }


LOSSES: Mapping[str, Handling] = {
    "a line": without_line,
    "a stretch": without_stretch,
    "what an omission marks": with_omissions,
    "a log": without_log,
    "all beginnings": without_beginnings,
    "the end of a log": with_one_short_log,
    "all but the last lines": ends_only,
}


# What arranges lines in other files.


def without_tag(number: int) -> bytes:
    return b""


def merged(logs: Logs, draw: random.Random, *, tag: Callable[[int], bytes] = without_tag) -> Logs:
    """All logs in one file; the lines of a process keep their order, and processes advance together.

    A launcher puts a tag before every line: of the number of the log.
    """
    placed = [
        ((number + draw.random()) / len(lines), name, number)
        for name, lines in logs.items()
        for number in range(len(lines))
    ]
    rest = {name: iter(lines) for name, lines in logs.items()}
    tags = {name: tag(number_of(name, place)) for place, name in enumerate(logs)}
    return {"job.log": [tags[name] + next(rest[name]).rstrip(b"\n") + b"\n" for _, name, _ in sorted(placed)]}


def number_of(name: str, place: int) -> int:
    """The rank in the name of a log, or else its place among the logs."""
    found = re.fullmatch(r"(?:.*/)?nccl_rank(\d+)\.log", name)
    return int(found[1]) if found else place


def renamed(logs: Logs, draw: random.Random) -> Logs:
    return {f"{draw.randrange(1 << 30):08x}.txt": lines for lines in logs.values()}


def in_halves(logs: Logs, draw: random.Random) -> Logs:
    """Each log in two files that rotation could have made."""
    halves: Logs = {}
    for name, lines in logs.items():
        middle = draw.randrange(len(lines) // 3, 2 * len(lines) // 3 + 1)
        halves |= {f"{name}.1": lines[:middle], name: lines[middle:]}
    return halves


def rotated(logs: Logs, draw: random.Random) -> Logs:
    """Each log in three files, the oldest compressed."""
    parts: Logs = {}
    for name, lines in logs.items():
        first, second = len(lines) // 3, 2 * len(lines) // 3
        parts[f"{name}.2.gz"] = compressed(lines[:first])
        parts[f"{name}.1"] = lines[first:second]
        parts[name] = lines[second:]
    return parts


def with_older_copies(logs: Logs, draw: random.Random) -> Logs:
    older = {f"{name}.gz": compressed(lines[: len(lines) * 2 // 3]) for name, lines in list(logs.items())[:2]}
    return logs | older | {f"logs.bak/{name}": lines for name, lines in list(logs.items())[-2:]}


def printed_twice(logs: Logs, draw: random.Random) -> Logs:
    """Into a file of each rank, and into the output of the job."""
    return logs | merged(logs, draw)


def two_in_a_file(logs: Logs, draw: random.Random) -> Logs:
    """NCCL_DEBUG_FILE without %p: two ranks print into one file."""
    names = sorted(logs)
    pairs = [names[first : first + 2] for first in range(0, len(names), 2)]
    return {
        f"nccl_{number}.log": merged({name: logs[name] for name in pair}, draw)["job.log"]
        for number, pair in enumerate(pairs)
    }


def compressed(lines: list[bytes]) -> list[bytes]:
    return [gzip.compress(b"".join(lines))]


# What changes every line.


def stamped(logs: Logs, draw: random.Random) -> Logs:
    return {
        name: [b"2026-11-21T03:14:%02d.%03dZ " % divmod(number, 1000) + line for number, line in enumerate(lines)]
        for name, lines in logs.items()
    }


def on_a_screen(logs: Logs, draw: random.Random) -> Logs:
    """Copied from a screen of 80 columns that fills its lines with blanks."""
    return {
        name: [
            line.rstrip(b"\n")[start : start + 80].ljust(80) + b"\n"
            for line in lines
            for start in range(0, max(1, len(line) - 1), 80)
        ]
        for name, lines in logs.items()
    }


def by_line(wrap: Callable[[str], str]) -> Handling:
    """Something done to every line of every log; each still stands in a line of its own."""

    def handle(logs: Logs, draw: random.Random) -> Logs:
        return {name: [f"{wrap(line)}\n".encode() for line in texts(lines)] for name, lines in logs.items()}

    return handle


def texts(lines: list[bytes]) -> list[str]:
    """The lines of a log without their ends."""
    return b"".join(lines).decode().splitlines()


def exported(logs: Logs, draw: random.Random) -> Logs:
    """As a log store answers: one array, the newest record first."""
    return {
        f"{name}.json": [
            json.dumps(
                [
                    {"timestamp": f"2026-11-21T03:14:{number // 1000 % 60:02d}.{number % 1000:03d}Z", "message": line}
                    for number, line in enumerate(texts(lines))
                ][::-1],
                indent=1,
            ).encode()
        ]
        for name, lines in logs.items()
    }


def in_batches(logs: Logs, draw: random.Random) -> Logs:
    """Three lines in one record."""
    batches: Logs = {}
    for name, data in logs.items():
        lines = texts(data)
        groups = ["\n".join(lines[start : start + 3]) for start in range(0, len(lines), 3)]
        batches[name] = [(json.dumps({"time": TIME, "message": text}) + "\n").encode() for text in groups]
    return batches


def by_grep(logs: Logs, draw: random.Random) -> Logs:
    """As `grep -n` prints: the name of the file and the number of the line before each line with a call or its Init."""
    wanted = re.compile(rb"opCount|Init (START|COMPLETE)|NCCL version")
    return {
        name: [b"%s:%d:%s" % (name.encode(), at, line) for at, line in enumerate(lines, 1) if wanted.search(line)]
        for name, lines in logs.items()
    }


def calls_only(logs: Logs, draw: random.Random) -> Logs:
    """NCCL_DEBUG_SUBSYS=COLL: no line about the start."""
    return {name: [line for line in lines if CALL.search(line)] for name, lines in logs.items()}


def of_one_host(logs: Logs, draw: random.Random) -> Logs:
    """In containers every host calls itself `localhost`."""
    return {name: [PROCESS.sub(rb"\1localhost:\2:\3 [", line) for line in lines] for name, lines in logs.items()}


def among_output(logs: Logs, draw: random.Random) -> Logs:
    """The application prints between the calls."""

    def lines_with_output(lines: list[bytes]) -> Iterator[bytes]:
        for number, line in enumerate(lines):
            yield line
            if CALL.search(line) and draw.random() < 0.5:
                yield draw.choice(OUTPUT) % (number % 100)

    return {name: list(lines_with_output(lines)) for name, lines in logs.items()}


def torn(logs: Logs, draw: random.Random) -> Logs:
    """Within one line in three hundred stands a line of another process."""

    def torn_lines(lines: list[bytes]) -> Iterator[bytes]:
        for line in lines:
            if len(line) > 60 and draw.random() < 1 / 300:
                cut = draw.randrange(20, len(line) - 10)
                yield from (line[:cut], b"Epoch 3: loss 1.93 acc 0.55\n", line[cut:])
            else:
                yield line

    return {name: list(torn_lines(lines)) for name, lines in logs.items()}


def tagged(form: Callable[[int], bytes]) -> Handling:
    """All logs in the output of a launcher, which puts a tag before every line."""
    return lambda logs, draw: merged(logs, draw, tag=form)


def launched(tag: Callable[[int, int], str]) -> Handling:
    """The same with the tag of a launcher: by the rank, and by its number on a host of eight."""
    return tagged(lambda rank: tag(rank, rank % 8).encode())


ARRANGED: Mapping[str, Handling] = {
    "merged": merged,
    "renamed": renamed,
    "in halves": in_halves,
    "stamped": stamped,
    "on a screen": on_a_screen,
    "printed twice": printed_twice,
    "two in a file": two_in_a_file,
}

STORED: Mapping[str, Handling] = {
    "docker": by_line(RECORDS[Simulated.DOCKER]),
    "JSON lines": by_line(RECORDS[Simulated.JSON_LINES]),
    "journald": by_line(lambda line: json.dumps({"MESSAGE": line, "__REALTIME_TIMESTAMP": "1795230855100000"})),
    "docker around JSON lines": by_line(
        lambda line: json.dumps({"log": json.dumps({"msg": line, "level": "info"}) + "\n", "time": TIME})
    ),
    "CRI": by_line(RECORDS[Simulated.CRI]),
    "CRI around JSON lines": by_line(lambda line: f"{TIME} stdout F {json.dumps({'msg': line, 'level': 'info'})}"),
    "CRLF": by_line(lambda line: f"{line}\r"),
    "padded with blanks": by_line(lambda line: line.ljust(240)),
    "with a blank at the end": by_line(lambda line: f"{line} "),
    "compressed": lambda logs, draw: {f"{name}.gz": compressed(lines) for name, lines in logs.items()},
    "renamed": renamed,
    "exported": exported,
    "exported JSON lines": lambda logs, draw: exported(STORED["JSON lines"](logs, draw), draw),
    "rotated": rotated,
    "older copies": with_older_copies,
    "several lines in a record": in_batches,
}

TAGGED: Mapping[str, Handling] = {
    **{str(kind): launched(tag) for kind, tag in TAGS.items()},
    "compose": tagged(lambda rank: b"train-worker-%-3d | " % rank),
    "syslog": tagged(lambda rank: b"Nov 21 03:14:15 gpu-%02d python3[%d]: " % (rank // 8, 4000 + rank)),
}

DISTURBED: Mapping[str, Handling] = {
    "quoted": by_line(lambda line: f"> {line}"),
    "grep -n": by_grep,
    "calls only": calls_only,
    "localhost": of_one_host,
    "output between": among_output,
    "torn": torn,
}

# What leaves all that a verdict needs, and what loses something.
KEPT: Mapping[str, Handling] = {**ARRANGED, **TAGGED, **STORED, **DISTURBED}
LOST: Mapping[str, Handling] = {
    **LOSSES,
    "half of the logs": without_share(1 / 2),
    "the second half of each": first_halves,
    "what holds broken lines together": wrapped,
}
