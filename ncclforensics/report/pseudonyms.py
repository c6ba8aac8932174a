"""Replace identifying words in any text by pseudonyms, and remove secrets.

Words that are known to be names are replaced wherever they stand; addresses, GUIDs, UUIDs, URLs, domains, numbers of
jobs and absolute paths are found by their form. The structure is preserved: equal hosts stay equal, addresses of one
network keep a common prefix, link-local addresses stay link-local, and file names keep their rank.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

from ncclforensics.data import redaction_rules
from ncclforensics.data.paths import STDIN
from ncclforensics.report import addresses, identifiers, marked_names
from ncclforensics.report.identifiers import Address
from ncclforensics.report.marked_names import Patterns

REMOVED = "[removed]"
_WORD = re.compile(r"[^\s\"'`()<>{}\[\],;=|]+")
_PARTS = re.compile(r"([^0-9A-Za-z]+)")
# Begins where a word does, and gives no character of it back: of a long word, each place would be tried to its end.
_ASSIGNED = re.compile(
    r"(?<![0-9A-Za-z_.-])([0-9A-Za-z_.-]++)([\"']?\s*[=:]\s*)"
    r"((?:Bearer |Basic )?(?:\"[^\"]*\"|'[^']*'|[^\s,;]+))"
)
_OPTION = re.compile(r"(?<!\S)--?([0-9A-Za-z_-]+) +([^\s-]\S*)")
_INNER_PATH = re.compile(r"[^0-9A-Za-z._~/-]/(?!/)|^-+[A-Z]?/|[0-9A-Za-z]//(?!/)")  # an absolute one, behind others
_BEHIND_DOTS = re.compile(r"(?<=\.{3})(?=[^.])")  # that fill a line of a table up to the value
_USER_AT_HOST = re.compile(r"([0-9A-Za-z_][0-9A-Za-z_.+-]*)@([0-9A-Za-z][0-9A-Za-z_.:-]*)")
_NOTHING = re.compile(r"(?!)")
MOST_ASSIGNMENTS = 50  # one inside the value of another
MOST_PARTS = 64  # of a name that is looked for part by part; longer ones are replaced wherever they stand


class Pseudonyms:
    """The pseudonym of each original text, numbered in the order of first use.

    `names` are replaced everywhere: hosts, users, secrets, input files. The names of folders and other files (`parts`)
    are replaced only inside paths, because they may be ordinary words. `kept` are words with the form of a GUID that
    are none, such as the identifier of a communicator.
    """

    def __init__(self, key: bytes, names: dict[str, str] | None = None, parts: dict[str, str] | None = None) -> None:
        self.key = key
        self.names = dict(names or {})
        self.parts = dict(parts or {})
        self.kept: set[str] = set()
        self._sizes: dict[str, list[int]] = {}  # first part of a name -> numbers of parts of such names, longest first
        self._long_names: set[str] = set()
        self._families: set[str] = set()  # what stands before the number in the names of hosts
        self._hosts_of_family = self._lists_of_hosts = _NOTHING
        self._counts: dict[str, int] = {}
        for name in self.names:
            self._note_size(name)
        for name, pseudonym in [*self.names.items(), *self.parts.items()]:
            if pseudonym.startswith("host-"):
                self._add_family(name)
            kind, _, number = pseudonym.lstrip(".").partition(".")[0].rpartition("-")
            if number.isdecimal():
                self._counts[kind] = max(self._counts.get(kind, 0), int(number))

    def set(self, original: str, pseudonym: str) -> None:
        """Set the pseudonym of a word."""
        self.names[original] = pseudonym
        self._note_size(original)

    def _note_size(self, name: str) -> None:
        parts = list(filter(None, _PARTS.split(name)))
        is_torn = self.names[name] == REMOVED and _WORD.findall(name) != [name]  # a secret with signs that end a word
        if len(parts) > MOST_PARTS or is_torn:
            self._long_names.add(name)
        elif parts and len(parts) not in (sizes := self._sizes.setdefault(parts[0], [])):
            sizes.append(len(parts))
            sizes.sort(reverse=True)

    def _new(self, kind: str, width: int = 2) -> str:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}-{self._counts[kind]:0{width}d}"

    def host(self, name: str) -> str:
        """Return the pseudonym of a host, with its domain if it has one: `host-07.domain-01`.

        A number, and what holds no letter at all, is none: it comes from a torn line.
        """
        if not any(map(str.isalnum, name)) or name in redaction_rules.EVERYWHERE or name.isdecimal():
            return name
        if name in self.names:
            return self.names[name]
        if (plain := name.strip(".")) != name:  # the root of all domains, or the end of a sentence
            return name.replace(plain, self.host(plain))
        if identifiers.address(name):
            return self._address(name)
        short, dot, domain = name.partition(".")
        if short.isdecimal():  # an address with a port, or a piece of one
            return self._with_addresses(name)
        if not domain or marked_names.is_special(short):
            pseudonym = self._host_without_domain(short)
        else:  # `www`, `model`: no name by itself
            pseudonym = self._new("host")
        if domain.lower() not in redaction_rules.TOP_DOMAINS and any(map(str.isalpha, domain)):
            if dot + domain not in self.names:
                self.set(dot + domain, dot + self._new("domain"))
                if domain not in self.names:
                    self.set(domain, self.names[dot + domain][1:])
                self._add_stems(domain.rpartition(".")[0], "site")
            domain = self.names[dot + domain][1:]
        self.set(name, pseudonym + dot + domain)
        return self.names[name]

    def _host_without_domain(self, name: str) -> str:
        if name not in self.names:
            self.set(name, self._new("host"))
            self._add_family(name)
            self._add_stems(name, "cluster")
        return self.names[name]

    def _add_family(self, name: str) -> None:
        if (family := marked_names.family_of(name)) and family not in self._families:
            self._families.add(family)
            self._hosts_of_family, self._lists_of_hosts = marked_names.patterns_of_families(self._families)

    def _add_stems(self, name: str, kind: str) -> None:
        for stem in marked_names.stems(name):
            self._named(stem, kind)

    def user(self, name: str) -> str:
        """Return the pseudonym of a user, unless it is one that many machines have."""
        name = name.rstrip(".")
        if name in redaction_rules.COMMON_USERS or name.isdecimal() or len(name) < redaction_rules.SHORTEST_USER:
            return name
        return self._named(name, "user")

    def job(self, name: str) -> str:
        """Return the pseudonym of a job: of a number as many digits, so that lines stay readable by programs."""
        if name in self.names or name.lower() in redaction_rules.COMMON_USERS:
            return self.names.get(name, name)
        if name.isdecimal():
            number = int.from_bytes(self.digest(f"job {name}", 8)) % 10 ** len(name)
            self.set(name, f"{number:0{len(name)}d}")
            return self.names[name]
        return self._named(name, "job")

    def serial_number(self, text: str) -> str:
        """Return the pseudonym of a serial number."""
        return text if len(text) < redaction_rules.SHORTEST_SERIAL else self._named(text, "serial")

    def _with_addresses(self, text: str) -> str:
        """Redact the addresses of IPv4 in a text, in ranges both ends."""
        return identifiers.IPV4.sub(lambda found: "-".join(map(self._address, found[0].split("-"))), text)

    def _address(self, word: str) -> str:
        return word if (address := identifiers.address(word)) is None else self._address_of(address, word)

    def _named(self, name: str, kind: str) -> str:
        if name not in self.names:
            self.set(name, self._new(kind))
        return self.names[name]

    def identifier(self, word: str) -> str:
        """Set and return the pseudonym of a hexadecimal identifier in all its forms: `0x506b…`, `506b:…`, `506b…`."""
        digits = word.lower().removeprefix("0x").replace(":", "")
        redacted = self._digits(digits)
        for form, pseudonym in ((digits, redacted), ("0x" + digits, "0x" + redacted)):
            if form not in self.names:
                self.set(form, pseudonym)
        if word not in self.names and ":" not in word:
            self.set(word, ("0x" if word[:2] in ("0x", "0X") else "") + redacted)
        return self.names.get(word, redacted)

    def _digits(self, digits: str) -> str:
        """Digits of the same number, the first of which show an address that is administered locally."""
        return ("02" + self.digest(digits.lower(), 20).hex())[: len(digits)]

    def add_names(self, text: str, find: Callable[[Patterns, str], list[str]]) -> None:
        """Assign pseudonyms to the names that something in a text marks as such; `find` looks for them."""
        for patterns, add in (
            (marked_names.JOBS, self.job),
            (marked_names.USERS, self.user),
            (marked_names.HOSTS, self._marked_host),
            (marked_names.SERIAL_NUMBERS, self.serial_number),
            (marked_names.ACCOUNT_NUMBERS, self.job),
        ):
            for name in find(patterns, text):
                add(name)
        for name in find(marked_names.BUCKETS, text):
            self._named(name, "bucket")
        for host in filter(identifiers.is_private_domain, find(marked_names.DOMAINS, text)):
            self.host(host)
        for user in filter(marked_names.is_special, find(marked_names.LIKELY_USERS, text)):
            self.user(user)
        for host in filter(marked_names.is_numbered_host, find(marked_names.LIKELY_HOSTS, text)):
            self._marked_host(host)
        for name in filter(marked_names.is_special, find(marked_names.PROJECTS, text)):
            self._named(name, "name")

    def _marked_host(self, name: str) -> None:
        """Assign a pseudonym to a host, or to the first one of a list: `node[003`."""
        if marked_names.is_special(plain := name.replace("[", "").strip(".-")):
            self.host(plain)

    def text(self, text: str) -> str:
        """Redact all known names, addresses, paths, jobs and secrets in a text."""
        for name in self._long_names:
            text = text.replace(name, self.names[name])
        self.add_names(text, marked_names.found)
        text = identifiers.SECRET.sub(lambda found: f"{found[found.lastindex or 0]}{REMOVED}", text)
        text = _OPTION.sub(self._option, _ASSIGNED.sub(self._assignment, text))
        if _BEHIND_DOTS.search(text):
            return "".join(map(self.text, _BEHIND_DOTS.split(text)))
        spans = [
            *((match.span(), self._url(match[1], match[2])) for match in identifiers.URL.finditer(text)),
            *((match.span(), REMOVED) for match in identifiers.TOKEN.finditer(text)),
            *((match.span(), self._uuid(match[0])) for match in identifiers.UUID.finditer(text)),
            *((match.span(), f"{match[1]}:{REMOVED}") for match in identifiers.ARN.finditer(text)),
            *((match.span(), self._with_colons(match[0])) for match in identifiers.WITH_COLONS.finditer(text)),
            *((match.span(), self._with_addresses(match[0])) for match in identifiers.IPV4.finditer(text)),
            *((match.span(), self.host(match[0])) for match in identifiers.HOST_OF_ADDRESS.finditer(text)),
            *((match.span(), match[1] + self._digits(match[2])) for match in identifiers.CLOUD_ID.finditer(text)),
            *((match.span(), f"enx{self._digits(match[1])}") for match in identifiers.INTERFACE_OF_MAC.finditer(text)),
            *((match.span(), self._named(match[0], "hosts")) for match in self._lists_of_hosts.finditer(text)),
        ]
        parts: list[str] = []
        at = 0
        for (first, last), redacted in sorted(spans):
            if first >= at and redacted != text[first:last]:
                parts += [self._words(text[at:first]), redacted]
                at = last
        return "".join([*parts, self._words(text[at:])])

    def _words(self, text: str) -> str:
        return _WORD.sub(lambda word: self._word(word[0]), text)

    def _assignment(self, match: re.Match[str], depth: int = 0) -> str:
        name, sign, value = match.groups()
        if marked_names.is_secret(name, value) or depth > MOST_ASSIGNMENTS:
            return f"{name}{sign}{REMOVED}"
        return f"{name}{sign}{_ASSIGNED.sub(lambda inner: self._assignment(inner, depth + 1), value)}"

    def _option(self, match: re.Match[str]) -> str:
        name, value = match.groups()
        return match[0].removesuffix(value) + REMOVED if marked_names.is_secret(name, value) else match[0]

    def _uuid(self, text: str) -> str:
        digits = self.digest(text.lower(), 16).hex()
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def _url(self, scheme: str, rest: str) -> str:
        """Redact a URL: who asks, the host or bucket, the path; what is asked for is left out."""
        rest, question, _ = rest.partition("?")
        authority, slash, path = rest.partition("/")
        asking, at, place = authority.rpartition("@")
        host, colon, port = place.partition(":")
        if scheme in redaction_rules.PLAIN_SCHEMES and not authority:
            return f"{scheme}://{self.path(slash + path) if slash else ''}"
        is_shown = identifiers.is_public(host) or rest.startswith(redaction_rules.PUBLIC_REPOSITORIES)
        if not is_shown:
            is_address = place.startswith("[") or identifiers.address(host) is not None
            place = self._words(place) if is_address else self._place(scheme, host) + colon + port
            path = self.path(slash + path)[1:]
        asking = f"{REMOVED}@" if at and asking else at
        return f"{scheme}://{asking}{place}{slash}{path}{question}{REMOVED * bool(question)}"

    def _place(self, scheme: str, host: str) -> str:
        is_network = scheme.startswith(("http", "tcp", "ucx", "ws", "ssh", "git", "grpc", "rdma", "verbs", "udp"))
        if not host or host in self.names:
            return self.names.get(host, host)
        if is_network or identifiers.is_domain(host):
            return self.host(host)
        return self._named(host, "bucket")

    def _word(self, word: str) -> str:
        for host in self._hosts_of_family.findall(word):  # numbered as known ones are
            self.host(host)
        if word in self.names:
            return self.names[word]
        if inner := [match.end() - 1 for match in _INNER_PATH.finditer(word)]:
            ends = zip([0, *inner], [*inner, len(word)], strict=True)
            return "".join(self._word(word[first:last]) for first, last in ends)
        if word.startswith(("/", "~")) and "/" in word and len(word) > 1:
            path, colon, rest = word.partition(":")
            return self.path(path) + colon + (self._word(rest) if rest else "")
        plain = word.rstrip(".:")
        end = word[len(plain) :]
        if word.startswith(("./", "../")) or ("/" in plain and plain.endswith(redaction_rules.SUFFIXES_OF_JOBS)):
            return self.path(plain) + end
        if address := identifiers.address(plain):
            return self._address_of(address, plain) + end
        if identifiers.is_guid(plain) and plain not in self.kept:
            return self.identifier(plain) + end
        if match := _USER_AT_HOST.fullmatch(plain):
            return self._user_at_host(*match.groups()) + end
        if "/" in plain and identifiers.is_domain(plain.partition("/")[0]):  # a page, or an image in a registry
            return self._url("https", plain).removeprefix("https://") + end
        if sign := next((sign for sign in "/:@%" if sign in word), ""):
            return sign.join(self._word(part) for part in word.split(sign))
        if self.names.get(plain.partition(".")[0], "").startswith("host-") and "." in plain:
            return self.host(plain) + end
        if identifiers.is_domain(plain):
            return plain + end if identifiers.is_public(plain) else self.host(plain) + end
        before, line, domain = plain.rpartition("_")
        return (
            self._known(before) + line + self._word(domain + end)
            if identifiers.is_domain(domain)
            else self._known(word)
        )

    def _user_at_host(self, user: str, host: str) -> str:
        redacted = self._word(host)
        is_host = redacted != host or identifiers.is_domain(host) or host in redaction_rules.EVERYWHERE
        return f"{self.user(user) if is_host else self._known(user)}@{redacted}"

    def _known(self, word: str) -> str:
        """Replace the names in a word, longest first; a name begins and ends at a separator."""
        parts = _PARTS.split(word)
        out, at = [], 0
        while at < len(parts):
            for size in self._sizes.get(parts[at], ()):
                name = "".join(parts[at : at + size])
                if name in self.names:
                    out.append(self.names[name])
                    at += size
                    break
            else:
                is_guid = identifiers.is_guid(parts[at]) and parts[at] not in self.kept
                out.append(self.identifier(parts[at]) if is_guid else parts[at])
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
        is_path = not text.startswith("-") and ("/" in text or "." in text) and "://" not in text
        return self.path(text) if is_path else self.text(text)

    def _folder(self, name: str, parent: str) -> str:
        if not name or name in redaction_rules.COMMON_FOLDERS or name in redaction_rules.COMMON_USERS:
            return name
        if name.startswith("~"):
            return f"~{self.user(name[1:])}"
        if parent in redaction_rules.HOMES and len(name) >= redaction_rules.SHORTEST_USER:
            return self.user(name)
        if name in self.names:
            return self.names[name]
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

    def _with_colons(self, text: str) -> str:
        """Redact an address of IPv6 or of hardware, behind a number of a line, before a port; other text stays."""
        colons = [at for at, character in enumerate(text) if character == ":"]
        last = len(text) if text.endswith("::") else len(text.rstrip(".:"))
        for first in (0, *(colon + 1 for colon in colons[:2])):
            for end in (last, *colons[-1:]):
                word = text[first:end]
                if groups := identifiers.hardware_groups(word):
                    digits, size = self._digits("".join(groups)), len(groups[0])
                    groups = [digits[size * number : size * (number + 1)] for number in range(len(groups))]
                    return text[:first] + word[size].join(groups) + self._with_addresses(text[end:])
                if address := identifiers.address(word):
                    return text[:first] + self._address_of(address, word) + text[end:]
        return text

    def digest(self, text: str, size: int) -> bytes:
        """Return a keyed digest of a text with `size` bytes."""
        return hashlib.blake2b(text.encode("utf-8", "replace"), key=self.key[:64], digest_size=size).digest()

    def _address_of(self, address: Address, text: str) -> str:
        number, percent, zone = text.partition("%")
        if percent:
            address = ipaddress.IPv6Address(number)  # one with a zone has no exploded form
        if isinstance(address, ipaddress.IPv6Address) and (mapped := address.ipv4_mapped):
            return f"::ffff:{addresses.redacted(mapped, self.digest)}"
        redacted = addresses.redacted(address, self.digest)
        return (redacted.exploded if len(number) == len(address.exploded) else str(redacted)) + percent + zone
