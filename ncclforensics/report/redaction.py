"""Redact hosts, addresses, user names and paths with consistent pseudonyms, and remove secrets.

Host names are taken from the columns that hold them. IP addresses, hardware addresses and absolute paths are found by
their form in any text. The structure is preserved: equal hosts stay equal, addresses of one network keep a common
prefix, link-local addresses stay link-local, and file names keep their rank.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path

import orjson
import polars as pl

from ncclforensics.archive.atomic_write import replacing
from ncclforensics.data import redaction_rules
from ncclforensics.data.paths import STDIN
from ncclforensics.data.stack_classes import own_files
from ncclforensics.errors import UsageError
from ncclforensics.formats import declared
from ncclforensics.frames.protocol import Frames
from ncclforensics.grammar.column_types import COLUMN_TYPES

REMOVED = "[removed]"
_WORD = re.compile(r"[^\s\"'`()<>{}\[\],;=|]+")
_PARTS = re.compile(r"([^0-9A-Za-z]+)")
_ASSIGNED = re.compile(r"([0-9A-Za-z_.-]+)([\"']?\s*[=:]\s*)((?:Bearer |Basic )?(?:\"[^\"]*\"|'[^']*'|[^\s,;]+))")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
# Prefixes that are kept because they show the kind of address; other addresses get a documentation prefix.
_KEPT_NETWORKS = [
    ipaddress.ip_network(network)
    for network in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "fe80::/64")
]
_DOCUMENTATION_NETWORKS = {4: ipaddress.ip_network("203.0.0.0/8"), 6: ipaddress.ip_network("2001:db8::/32")}


class Pseudonyms:
    """The pseudonym of each original text, numbered in the order of first use.

    `names` are replaced everywhere: hosts, users, secrets, input files. The names of folders and other files (`parts`)
    are replaced only inside paths, because they may be ordinary words.
    """

    def __init__(self, key: bytes, names: dict[str, str] | None = None, parts: dict[str, str] | None = None) -> None:
        self.key = key
        self.names = dict(names or {})
        self.parts = dict(parts or {})
        self._longest = max((len(_PARTS.split(name)) for name in self.names), default=1)  # in parts of a name
        self._counts: dict[str, int] = {}
        for pseudonym in [*self.names.values(), *self.parts.values()]:
            kind, _, number = pseudonym.lstrip(".").partition(".")[0].rpartition("-")
            if number.isdecimal():
                self._counts[kind] = max(self._counts.get(kind, 0), int(number))

    def set(self, original: str, pseudonym: str) -> None:
        """Set the pseudonym of a word."""
        self.names[original] = pseudonym
        self._longest = max(self._longest, len(_PARTS.split(original)))

    def _new(self, kind: str, width: int = 2) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}-{self._counts[kind]:0{width}d}"

    def host(self, name: str) -> str:
        """Return the pseudonym of a host, with its domain if it has one: `host-07.domain-01`."""
        if name in self.names or not name or name in redaction_rules.EVERYWHERE or name.isdecimal() or _address(name):
            return self.text(name)
        short, dot, domain = name.partition(".")
        if short not in self.names:
            self.set(short, self._new("host"))
        if domain:
            if dot + domain not in self.names:
                self.set(dot + domain, dot + self._new("domain"))
            self.set(name, self.names[short] + self.names[dot + domain])
        return self.names[name]

    def text(self, text: str) -> str:
        """Redact all known names, addresses, paths and secrets in a text."""
        return _WORD.sub(lambda word: self._word(word[0]), _ASSIGNED.sub(self._assignment, text))

    def _assignment(self, match: re.Match[str]) -> str:
        name, sign, value = match.groups()
        if is_secret(name, value):
            return f"{name}{sign}{REMOVED}"
        return f"{name}{sign}{_ASSIGNED.sub(self._assignment, value)}"

    def _word(self, word: str) -> str:
        if word in self.names:
            return self.names[word]
        if word.startswith(redaction_rules.SECRET_BEGINNINGS):
            return REMOVED
        if word.startswith(("/", "~/")) and len(word) > 1:
            path, colon, rest = word.partition(":")
            return self.path(path) + colon + (self._word(rest) if rest else "")
        if hardware := self._hardware(word):
            return hardware
        address_text = word.rstrip(".:")
        if address := _address(address_text):
            return self._address_of(address, address_text) + word[len(address_text) :]
        if sign := next((sign for sign in "/:@%" if sign in word), ""):
            return sign.join(self._word(part) for part in word.split(sign))
        if self.names.get(address_text.partition(".")[0], "").startswith("host-") and "." in address_text:
            return self.host(address_text) + word[len(address_text) :]
        return self._known(word)

    def _known(self, word: str) -> str:
        """Replace the names in a word, longest first; a name begins and ends at a separator."""
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
        """Redact a path folder by folder; common folders, the suffix and the rank are kept."""
        if path in self.names or path == STDIN:
            return self.names.get(path, path)
        if f"{path}/".startswith(redaction_rules.SYSTEM_PATHS):
            return "/".join(self._known(part) for part in path.split("/"))
        *folders, name = path.split("/")
        redacted_folders = [
            self._folder(folder, parent) for parent, folder in zip(["", *folders], folders, strict=False)
        ]
        is_home = bool(folders) and folders[-1] in redaction_rules.HOMES
        return "/".join([*redacted_folders, self._folder(name, folders[-1]) if is_home else self._file(name, rank)])

    def argument(self, text: str) -> str:
        """Redact an argument of a command, which may be a relative path."""
        is_path = not text.startswith("-") and ("/" in text or "." in text)
        return self.path(text) if is_path else self.text(text)

    def _folder(self, name: str, parent: str) -> str:
        if parent in redaction_rules.HOMES and name and name not in redaction_rules.COMMON_USERS:
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
            rank_text = "" if rank is None else f".rank{rank}"
            self.parts[name] = self._new("file", width=3) + rank_text + suffix * is_plain
        return self.parts[name]

    def _hardware(self, word: str) -> str | None:
        """Redact a MAC address or a GUID in the form of verbs; the groups keep their number and size."""
        groups = word.split(":")
        shape = (len(groups), {len(group) for group in groups})
        if shape not in ((6, {2}), (8, {2}), (20, {2}), (4, {4})) or not set(word) - {":"} <= _HEXADECIMAL:
            return None
        digest = "02" + self.digest(word, 20).hex()
        size = len(groups[0])
        return ":".join(digest[size * number : size * (number + 1)] for number in range(len(groups)))

    def digest(self, text: str, size: int) -> bytes:
        """Return a keyed digest of a text with `size` bytes."""
        return hashlib.blake2b(text.encode(), key=self.key[:64], digest_size=size).digest()

    def _address_of(self, address: Address, text: str) -> str:
        number, percent, zone = text.partition("%")
        if isinstance(address, ipaddress.IPv6Address) and (mapped := address.ipv4_mapped):
            return f"::ffff:{self._redact_address(mapped)}"
        redacted = self._redact_address(address)
        return (redacted.exploded if len(number) == len(address.exploded) else str(redacted)) + percent + zone

    def _redact_address(self, address: Address) -> Address:
        """Return another address of the same kind; addresses with a common prefix get an equally long common prefix."""
        if address.is_loopback or address.is_unspecified or address.is_multicast or int(address) == 0xFFFFFFFF:
            return address
        kept = next((network for network in _KEPT_NETWORKS if address in network), None)
        network = kept or _DOCUMENTATION_NETWORKS[address.version]
        width = address.max_prefixlen
        number = int(network.network_address) >> (width - network.prefixlen)
        for bit in range(network.prefixlen, width):
            prefix = int(address) >> (width - bit)
            flips = self.digest(f"{address.version} {bit} {prefix}", 1)[0] & 1
            number = number << 1 | ((int(address) >> (width - bit - 1) & 1) ^ flips)
        return type(address)(number)


def _address(word: str) -> Address | None:
    try:
        return ipaddress.ip_address(word)
    except ValueError:
        return None


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of this name holds a secret; short numbers do not: `key=0` is an argument of a split."""
    words = {part.upper() for part in name.replace("-", "_").replace(".", "_").split("_")}
    return not words.isdisjoint(redaction_rules.SECRET_WORDS) and not (
        value.isdecimal() and len(value) < redaction_rules.PLAIN_NUMBER
    )


def assign_pseudonyms(run: Frames, map_file: Path | None = None) -> Pseudonyms:
    """Assign pseudonyms to the hosts, files and users of a run, in rank order; extend those of `map_file`."""
    hosts = _hosts(run)
    pseudonyms = _read_map(map_file) if map_file is not None and map_file.exists() else Pseudonyms(_key(run, hosts))
    for name in hosts:
        pseudonyms.host(name)
    for reading in run.inputs:
        path = reading.source.path
        redacted_path = pseudonyms.path(path, reading.source.rank_hint)
        pseudonyms.set(path, redacted_path)
        if not Path(path).name.isalpha():  # a name such as `job` may be an ordinary word
            pseudonyms.set(Path(path).name, Path(redacted_path).name)
    for frame, column in (columns for declaration in declared("CODE_COLUMNS") for columns in declaration):
        for path in own_files(run[frame][column].cast(pl.String).drop_nulls().unique()):
            pseudonyms.set(path, pseudonyms.path(path))
            pseudonyms.set(Path(path).name, pseudonyms.path(Path(path).name))
    for value in _secrets(run):
        pseudonyms.set(value, REMOVED)
    for frame, column in (columns for declaration in declared("ID_COLUMNS") for columns in declaration):
        for identifier in run[frame][column].cast(pl.String).drop_nulls().unique().sort():
            pseudonyms.set(identifier, pseudonyms.digest(identifier, 32).hex()[: len(identifier)])
    return pseudonyms


def _key(run: Frames, hosts: Iterable[str]) -> bytes:
    """Derive the key from the logs: the same logs get the same pseudonyms, and others cannot compute it."""
    texts = [column.cast(pl.String).drop_nulls() for column in (run["rank"]["pid"], run["member"]["comm"])]
    return hashlib.sha256("\n".join(sorted([*hosts, *texts[0], *texts[1]])).encode()).digest()


def _hosts(run: Frames) -> list[str]:
    """Return every host name in any column: those of ranks first, in their order."""
    rank_hosts = run["rank"].sort("job", "rank", nulls_last=True)["host"]
    columns = [rank_hosts]
    more_hosts = {grammar: names for declaration in declared("HOST_COLUMNS") for grammar, names in declaration.items()}
    no_hosts = {name for names in declared("NO_HOST_COLUMNS") for name in names}
    labels = [name for name, base in run.dialect.labels.items() if base is COLUMN_TYPES["HOSTNAME"]]
    for shape in run.dialect.with_all_formats.shapes:
        host_columns = [
            name
            for name, base in shape.columns.items()
            if (base is COLUMN_TYPES["HOSTNAME"] and name not in no_hosts) or name in more_hosts.get(shape.grammar, ())
        ]
        if (host_columns or labels) and (frame := run[shape.frame]).height:
            columns += [frame[name] for name in {*host_columns, *labels} if name in frame.columns]
    names = [text for column in columns for text in column.cast(pl.String).drop_nulls().unique()]
    first = rank_hosts.cast(pl.String).drop_nulls()
    return list(dict.fromkeys([*first, *sorted(names)]))


def _secrets(run: Frames) -> list[str]:
    """Return the values of variables whose names mark them as secret."""
    values = []
    for frame, name, value in (columns for declaration in declared("SECRET_COLUMNS") for columns in declaration):
        variables = run[frame].select(pl.col(name, value).cast(pl.String)).drop_nulls().unique()
        values += [text for variable, text in variables.iter_rows() if is_secret(variable, text)]
    return sorted(values)


def _read_map(map_file: Path) -> Pseudonyms:
    try:
        stored = orjson.loads(map_file.read_bytes())
        names, parts = ({str(name): str(to) for name, to in stored[key].items()} for key in ("names", "parts"))
        return Pseudonyms(bytes.fromhex(stored["key"]), names, parts)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise UsageError(f"{map_file}: not a pseudonym map of ncclforensics") from error


def write_map(pseudonyms: Pseudonyms, map_file: Path) -> None:
    """Write the pseudonym map atomically, readable only by its owner."""
    stored = {"key": pseudonyms.key.hex(), "names": pseudonyms.names, "parts": pseudonyms.parts}
    text = orjson.dumps(stored, option=orjson.OPT_INDENT_2) + b"\n"
    with replacing(map_file, mode=0o600) as file:
        file.write(text)
