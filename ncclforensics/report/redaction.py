"""What may leave the house: hosts, addresses, users and paths become pseudonyms, the same everywhere; secrets vanish.

Names of hosts are known from the columns that hold them. Addresses, hardware addresses and absolute paths are known by
what they look like, in any text. What matters stays: which hosts are the same, which addresses share a network (their
common bits stay common), what is link-local, which rank a file is of.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import orjson
import polars as pl

from ncclforensics.data import redaction_rules
from ncclforensics.data.paths import STDIN
from ncclforensics.errors import UsageError
from ncclforensics.formats import declared
from ncclforensics.frames.protocol import Frames
from ncclforensics.grammar.column_types import COLUMN_TYPES
from ncclforensics.grammar.dialect import Dialect
from ncclforensics.report.build import Report
from ncclforensics.report.selection import Selection

GONE = "[removed]"
_WORD = re.compile(r"[^\s\"'`()<>{}\[\],;=|]+")
_PARTS = re.compile(r"([^0-9A-Za-z]+)")
_ASSIGNED = re.compile(r"([0-9A-Za-z_.-]+)([\"']?\s*[=:]\s*)((?:Bearer |Basic )?(?:\"[^\"]*\"|'[^']*'|[^\s,;]+))")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# Networks whose own bits stay, for they say what kind of address it is; all others begin like an example.
_KINDS = [
    ipaddress.ip_network(each)
    for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "fe80::/64")
]
_OTHERS = {4: ipaddress.ip_network("203.0.0.0/8"), 6: ipaddress.ip_network("2001:db8::/32")}


class Pseudonyms:
    """Original -> pseudonym, given out in the order in which they are asked for.

    `names` are words that are replaced wherever they stand: hosts, users, secrets, the files that were read. What a
    folder or another file is called is replaced inside paths alone (`parts`), for it may be a word like any other.
    """

    def __init__(self, key: bytes, names: dict[str, str] | None = None, parts: dict[str, str] | None = None) -> None:
        self.key = key
        self.names = dict(names or {})
        self.parts = dict(parts or {})
        self._longest = max((len(_PARTS.split(name)) for name in self.names), default=1)  # parts of a name
        self._counts: dict[str, int] = {}
        for pseudonym in [*self.names.values(), *self.parts.values()]:
            kind, _, number = pseudonym.lstrip(".").partition(".")[0].rpartition("-")
            if number.isdecimal():
                self._counts[kind] = max(self._counts.get(kind, 0), int(number))

    def set(self, original: str, pseudonym: str) -> None:
        """Let a word be known by this pseudonym."""
        self.names[original] = pseudonym
        self._longest = max(self._longest, len(_PARTS.split(original)))

    def _new(self, kind: str, width: int = 2) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}-{self._counts[kind]:0{width}d}"

    def host(self, name: str) -> str:
        """A host, with its domain if it has one: `host-07.domain-01`."""
        if name in self.names or not name or name in redaction_rules.EVERYWHERE or name.isdecimal() or _address(name):
            return self.text(name)
        short, dot, domain = name.partition(".")
        if short not in self.names:
            self.set(short, self._new("host"))
        if dot and domain:
            if dot + domain not in self.names:
                self.set(dot + domain, dot + self._new("domain"))
            self.set(name, self.names[short] + self.names[dot + domain])
        return self.names[name]

    def text(self, text: str) -> str:
        """A text of any kind in which nothing of what is known, or looks like it, remains."""
        return _WORD.sub(lambda word: self._word(word[0]), _ASSIGNED.sub(self._assignment, text))

    def _assignment(self, found: re.Match[str]) -> str:
        name, sign, value = found.groups()
        if is_secret(name, value):
            return f"{name}{sign}{GONE}"
        return f"{name}{sign}{_ASSIGNED.sub(self._assignment, value)}"

    def _word(self, word: str) -> str:
        if word in self.names:
            return self.names[word]
        if word.startswith(redaction_rules.SECRET_BEGINNINGS):
            return GONE
        if word.startswith(("/", "~/")) and len(word) > 1:
            path, colon, rest = word.partition(":")
            return self.path(path) + colon + (self._word(rest) if rest else "")
        if seen := self._hardware(word):
            return seen
        bare = word.rstrip(".:")
        if address := _address(bare):
            return self._address_of(address, bare) + word[len(bare) :]
        for sign in "/:@%":
            if sign in word:
                return sign.join(self._word(part) for part in word.split(sign))
        if self.names.get(bare.partition(".")[0], "").startswith("host-") and "." in bare:
            return self.host(bare) + word[len(bare) :]
        return self._known(word)

    def _known(self, word: str) -> str:
        """A word with the names in it replaced, the longest first; a name begins and ends where a word could."""
        parts = _PARTS.split(word)
        out, at = [], 0
        while at < len(parts):
            for end in range(min(len(parts), at + self._longest), at, -1):
                name = "".join(parts[at:end])
                if name in self.names:
                    out.append(self.names[name])
                    at = end
                    break
            else:
                out.append(parts[at])
                at += 1
        return "".join(out)

    def path(self, path: str, rank: int | None = None) -> str:
        """A path, folder by folder; what every machine has stays, and so do the suffix and the rank it is of."""
        if path in self.names or path == STDIN:
            return self.names.get(path, path)
        if f"{path}/".startswith(redaction_rules.SYSTEM_PATHS):
            return "/".join(self._known(part) for part in path.split("/"))
        *folders, name = path.split("/")
        told = [self._folder(folder, before) for before, folder in zip(["", *folders], folders, strict=False)]
        is_home = bool(folders) and folders[-1] in redaction_rules.HOMES
        return "/".join([*told, self._folder(name, folders[-1]) if is_home else self._file(name, rank)])

    def argument(self, text: str) -> str:
        """An argument of a command: the paths among them are not known by what they look like."""
        is_path = not text.startswith("-") and ("/" in text or "." in text)
        return self.path(text) if is_path else self.text(text)

    def _folder(self, name: str, before: str) -> str:
        if before in redaction_rules.HOMES and name and name not in redaction_rules.COMMON_USERS:
            if name not in self.names:
                self.set(name, self._new("user"))
            return self.names[name]
        if not name or name in redaction_rules.COMMON_FOLDERS or name in redaction_rules.COMMON_USERS:
            return name
        if name not in self.parts:
            self.parts[name] = self._new("dir")
        return self.parts[name]

    def _file(self, name: str, rank: int | None) -> str:
        if not name or name.startswith(redaction_rules.COMMON_FILES) or name in redaction_rules.COMMON_FOLDERS:
            return name
        if name not in self.parts:
            suffix = Path(name).suffix
            is_plain = suffix[1:].isalpha() and len(suffix) <= redaction_rules.LONGEST_SUFFIX
            of_rank = "" if rank is None else f".rank{rank}"
            self.parts[name] = self._new("file", width=3) + of_rank + suffix * is_plain
        return self.parts[name]

    def _hardware(self, word: str) -> str | None:
        """A MAC address, or a GUID as verbs print it: as many groups of as many digits, of its own digest."""
        groups = word.split(":")
        shape = (len(groups), {len(group) for group in groups})
        if shape not in ((6, {2}), (8, {2}), (20, {2}), (4, {4})) or not set(word) - {":"} <= _HEXADECIMAL:
            return None
        digest = "02" + self.digest(word, 20).hex()
        size = len(groups[0])
        return ":".join(digest[size * number : size * (number + 1)] for number in range(len(groups)))

    def digest(self, text: str, size: int) -> bytes:
        """As many bytes that tell nothing of the text without the key."""
        return hashlib.blake2b(text.encode(), key=self.key[:64], digest_size=size).digest()

    def _address_of(self, address: Address, written: str) -> str:
        plain, percent, zone = written.partition("%")
        if isinstance(address, ipaddress.IPv6Address) and (within := address.ipv4_mapped):
            return f"::ffff:{self._moved(within)}"
        moved = self._moved(address)
        return (moved.exploded if len(plain) == len(address.exploded) else str(moved)) + percent + zone

    def _moved(self, address: Address) -> Address:
        """Another address. Two that share their first bits share as many afterwards; the kind of network stays."""
        if address.is_loopback or address.is_unspecified or address.is_multicast or int(address) == 0xFFFFFFFF:
            return address
        home = next((each for each in _KINDS if address in each), None)
        begins = home or _OTHERS[address.version]
        width = address.max_prefixlen
        number = int(begins.network_address) >> (width - begins.prefixlen)
        for bit in range(begins.prefixlen, width):
            before = int(address) >> (width - bit)
            flips = self.digest(f"{address.version} {bit} {before}", 1)[0] & 1
            number = number << 1 | ((int(address) >> (width - bit - 1) & 1) ^ flips)
        return type(address)(number)


def _address(word: str) -> Address | None:
    try:
        return ipaddress.ip_address(word)
    except ValueError:
        return None


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of this name holds a secret. Short numbers are none: `key=0` is a colour of a split."""
    words = {part.upper() for part in name.replace("-", "_").replace(".", "_").split("_")}
    return not words.isdisjoint(redaction_rules.SECRET_WORDS) and not (
        value.isdecimal() and len(value) < redaction_rules.PLAIN_NUMBER
    )


def pseudonyms(run: Frames, mapping: Path | None = None) -> Pseudonyms:
    """What is known of a run's hosts, files and users, in the order of ranks; continued from `mapping` if it exists."""
    hosts = _hosts(run)
    known = _read(mapping) if mapping is not None and mapping.exists() else Pseudonyms(_key(run, hosts))
    for name in hosts:
        known.host(name)
    for reading in run.inputs:
        path = reading.source.path
        told = known.path(path, reading.source.rank_hint)
        known.set(path, told)
        if not Path(path).name.isalpha():  # a file called `job` may be any word
            known.set(Path(path).name, Path(told).name)
    for value in _secrets(run):
        known.set(value, GONE)
    for frame, column in (place for places in declared("ID_COLUMNS") for place in places):
        for identifier in run[frame][column].cast(pl.String).drop_nulls().unique().sort():
            known.set(identifier, known.digest(identifier, 32).hex()[: len(identifier)])
    return known


def _key(run: Frames, hosts: Iterable[str]) -> bytes:
    """The same logs get the same pseudonyms; who has not got them cannot compute the key."""
    told = [column.cast(pl.String).drop_nulls() for column in (run["rank"]["pid"], run["member"]["comm"])]
    return hashlib.sha256("\n".join(sorted([*hosts, *told[0], *told[1]])).encode()).digest()


def _hosts(run: Frames) -> list[str]:
    """Every host that some column names: those of ranks first, in their order."""
    ranked = run["rank"].sort("job", "rank", nulls_last=True)["host"]
    found = [ranked]
    more_hosts = {grammar: names for columns in declared("HOST_COLUMNS") for grammar, names in columns.items()}
    no_hosts = {name for names in declared("NO_HOST_COLUMNS") for name in names}
    labels = [name for name, base in run.dialect.labels.items() if base is COLUMN_TYPES["HOSTNAME"]]
    for shape in run.dialect.with_all_formats.shapes:
        own = [
            name
            for name, base in shape.columns.items()
            if (base is COLUMN_TYPES["HOSTNAME"] and name not in no_hosts) or name in more_hosts.get(shape.grammar, ())
        ]
        frame = run[shape.frame] if own or labels else None
        if frame is not None and frame.height:
            found += [frame[name] for name in {*own, *labels} if name in frame.columns]
    names = [text for column in found for text in column.cast(pl.String).drop_nulls().unique()]
    first = ranked.cast(pl.String).drop_nulls()
    return list(dict.fromkeys([*first, *sorted(names)]))


def _secrets(run: Frames) -> list[str]:
    """Values of variables whose names say that they are secret, wherever else they stand."""
    found = []
    for frame, name, value in (place for places in declared("SECRET_COLUMNS") for place in places):
        told = run[frame].select(pl.col(name, value).cast(pl.String)).drop_nulls().unique()
        found += [text for variable, text in told.iter_rows() if is_secret(variable, text)]
    return sorted(found)


def _read(mapping: Path) -> Pseudonyms:
    try:
        told = orjson.loads(mapping.read_bytes())
        names, parts = ({str(name): str(to) for name, to in told[each].items()} for each in ("names", "parts"))
        return Pseudonyms(bytes.fromhex(told["key"]), names, parts)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{mapping}: no mapping of this program") from error


def write(known: Pseudonyms, mapping: Path) -> None:
    """Keep what stands for what, readable for its owner alone."""
    told = {"key": known.key.hex(), "names": known.names, "parts": known.parts}
    text = orjson.dumps(told, option=orjson.OPT_INDENT_2) + b"\n"
    new = mapping.with_name(f".{mapping.name}.{os.getpid()}")
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(text)
    new.replace(mapping)


class RedactedRun:
    """A run whose frames are redacted as they are asked for; what they say was worked out from the originals."""

    def __init__(self, run: Frames, known: Pseudonyms) -> None:
        self._run, self._known = run, known
        self._frames: dict[str, pl.DataFrame] = {}
        self.inputs = [
            replace(
                reading,
                source=replace(reading.source, path=known.path(reading.source.path)),
                problems=[known.text(problem) for problem in reading.problems],
            )
            for reading in run.inputs
        ]

    @property
    def dialect(self) -> Dialect:
        """Describes the parsed frames."""
        return self._run.dialect

    @property
    def hashes(self) -> dict[int, str]:
        """Number of an input -> SHA-256 of its bytes, where a saved run holds it."""
        return self._run.hashes

    @property
    def tally(self) -> pl.DataFrame:
        """Lines read of every input, by kind."""
        return self._run.tally

    @property
    def kinds(self) -> dict[int, str]:
        """The kinds of the sources."""
        return self._run.kinds

    def has(self, name: str) -> bool:
        """Rows are neither added nor taken away."""
        return self._run.has(name)

    def quote(self, wanted: Iterable[tuple[int, int]]) -> dict[tuple[int, int], tuple[int, str]]:
        """Lines that are read a second time are redacted, too."""
        return {place: (line, self._known.text(text)) for place, (line, text) in self._run.quote(wanted).items()}

    def __getitem__(self, name: str) -> pl.DataFrame:
        if name not in self._frames:
            self._frames[name] = frame(self._run[name], self._known)
        return self._frames[name]


def frame(rows: pl.DataFrame, known: Pseudonyms) -> pl.DataFrame:
    """The rows, with every text in them redacted; a value beside the name of a secret is gone."""
    name = next((each for each in ("variable", "name") if {each, "value"} <= set(rows.columns)), None)
    columns: list[pl.Series] = []
    for column in rows.iter_columns():
        if column.dtype in (pl.String, pl.Categorical):
            columns.append(_mapped(column, known.text))
        elif column.dtype == pl.List(pl.String):
            texts = column.explode().drop_nulls().unique()
            columns.append(column.list.eval(pl.element().replace(texts, _mapped(texts, known.text))))
        else:
            columns.append(column)
    redacted = pl.DataFrame(columns)
    if name is None or rows["value"].dtype not in (pl.String, pl.Categorical):
        return redacted
    pairs = rows.select(pl.col(name, "value").cast(pl.String)).iter_rows()
    secret = pl.Series([bool(a and b and is_secret(a, b)) for a, b in pairs], dtype=pl.Boolean)
    value = pl.when(secret).then(pl.lit(GONE)).otherwise(pl.col("value").cast(pl.String))
    return redacted.with_columns(value.cast(rows["value"].dtype).alias("value"))


def _mapped(column: pl.Series, change: Callable[[str], str]) -> pl.Series:
    old = column.cast(pl.String).drop_nulls().unique().to_list()
    new = {text: to for text in old if (to := change(text)) != text}
    if not new:
        return column
    return column.cast(pl.String).replace(list(new), list(new.values())).cast(column.dtype)


def redacted(report: Report, known: Pseudonyms) -> Report:
    """The same report with pseudonyms: findings and verdicts are those of the originals."""
    host = report.selection.host
    own = {rule.name: rule.section("Do") for rule in report.asked}  # the program's words, which name nobody
    return Report(
        RedactedRun(report.run, known),
        [
            replace(
                finding,
                title=known.text(finding.title),
                detail=known.text(finding.detail),
                remedy=finding.remedy if finding.remedy == own[finding.rule] else known.text(finding.remedy),
                hosts=[known.host(name) for name in finding.hosts],
            )
            for finding in report.findings
        ],
        {place: (line, known.text(text)) for place, (line, text) in report.quotes.items()},
        Selection(report.selection.ranks, known.host(host) if host else None, report.selection.communicator),
        report.asked,
        report.hashes,
    )
