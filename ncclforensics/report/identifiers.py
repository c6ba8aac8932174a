"""Recognise identifiers by their form in any text: addresses, hardware addresses, UUIDs, domains, tokens.

What stands in a text is not known here, so nothing of it is described by a grammar.
"""

from __future__ import annotations

import ipaddress
import re

from ncclforensics.data import redaction_rules

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}(?![0-9A-Za-z])")
# A scheme is short: without a bound, each place of a long word would be tried to its end.
URL = re.compile(r"(?<![0-9A-Za-z+.])([A-Za-z][0-9A-Za-z+.-]{0,64})://([^\s\"'`<>|\\^{}]+)")
# What may be an address of hardware or of IPv6: an interface may stand before it, a port behind.
WITH_COLONS = re.compile(
    r"(?<![0-9A-Za-z])(?:[0-9A-Fa-f]{0,4}:){2,}[0-9A-Fa-f:.]*(?:%[0-9A-Za-z_-]+)?(?![0-9A-Za-z])"
    r"|(?<![0-9A-Za-z-])(?:[0-9A-Fa-f]{2}-){5}(?:[0-9A-Fa-f]{2}-){0,2}[0-9A-Fa-f]{2}(?![0-9A-Za-z-])"
    r"|(?<![0-9A-Za-z.])(?=[0-9.]*[A-Fa-f])(?:[0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4}(?![0-9A-Za-z.])"
)
# An address, or the first and the last of a range, between any signs; behind a word and a dash may be a version.
IPV4 = re.compile(
    r"(?<![0-9A-Za-z.])(?<![0-9A-Za-z]-)(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?:-(?:[0-9]{1,3}\.){3}[0-9]{1,3})?(?![0-9A-Za-z]|\.[0-9])"
)
HOST_OF_ADDRESS = re.compile(r"(?<![0-9A-Za-z-])ip-[0-9]{1,3}(?:-[0-9]{1,3}){3}(?![0-9A-Za-z-])")
# What AWS calls instances, networks and volumes.
CLOUD_ID = re.compile(
    r"(?<![0-9A-Za-z-])((?:i|eni|vpc|subnet|sg|vol|ami|fs)-)([0-9a-f]{17}|[0-9a-f]{8})(?![0-9A-Za-z-])"
)
INTERFACE_OF_MAC = re.compile(r"(?<![0-9A-Za-z])enx([0-9a-f]{12})(?![0-9A-Za-z])")
ARN = re.compile(r"(?<![0-9A-Za-z])(arn:aws[a-z-]*:[0-9a-z-]*:[0-9a-z-]*:)[0-9]*:[^\s\"'<>,;]+")
TOKEN = re.compile(
    rf"(?<![0-9A-Za-z])(?:{'|'.join(map(re.escape, redaction_rules.SECRET_BEGINNINGS))})[0-9A-Za-z_./+=-]+"
    r"|(?<![0-9A-Za-z])SG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*"
)
# A secret, and what stands before it: headers, `curl -u`, lines of .netrc.
SECRET = re.compile(
    r"(\bBearer )[0-9A-Za-z_.~+/=-]{8,}|((?<!\S)-u )(?![0-9]+:)[^\s:]+:\S+|(\blogin \S{1,99} password )\S+"
)
# Groups of an address of which a torn line or a field holds the beginning or the end; of digits alone, it is a time.
_CUT_SHAPES = ((4, {2}), (5, {2}), (7, {2}), *((count, {2}) for count in range(9, 20)), (3, {4}))
_GUID = re.compile(r"(?:0[xX])?(?:[0-9a-fA-F]{16}|[0-9a-fA-F]{32}|[0-9a-fA-F]{40})")
_INSTITUTE = re.compile(r"[0-9A-Za-z-]+(?:\.[A-Za-z]+){2,}")
_DOMAIN = re.compile(r"(?:[0-9A-Za-z](?:[0-9A-Za-z-]*[0-9A-Za-z])?\.)+([A-Za-z]{2,})")


def address(word: str) -> Address | None:
    """Return the IP address that a word is."""
    try:
        return ipaddress.ip_address(word)
    except ValueError:
        return None


def hardware_groups(word: str) -> list[str] | None:
    """Return the groups of digits of a MAC address, or of a GUID or GID as verbs print them; None for other words."""
    separator = next((sign for sign in "-." if sign in word), ":")
    groups = word.split(separator)
    shape = (len(groups), {len(group) for group in groups})
    if not set(word) - {separator} <= _HEXADECIMAL:
        return None
    if separator == ":" and shape in _CUT_SHAPES and not word.replace(":", "").isdecimal():
        return groups
    shapes = {":": ((6, {2}), (8, {2}), (20, {2}), (4, {4})), "-": ((6, {2}), (8, {2})), ".": ((3, {4}),)}
    return groups if shape in shapes[separator] else None


def is_guid(word: str) -> bool:
    """Whether a word may be the GUID of a port or a node: 16 hexadecimal digits, and not only decimal ones."""
    return bool(_GUID.fullmatch(word)) and (word[1] in "xX" or not word.isdecimal())


def is_domain(word: str) -> bool:
    """Whether a word is the name of a host with its domain."""
    match = _DOMAIN.fullmatch(word)
    if match is None or match[1].lower() not in redaction_rules.TOP_DOMAINS:
        return False
    if match[1] in redaction_rules.SUFFIXES_OF_FILES and not _INSTITUTE.fullmatch(word):
        return False
    first = word.partition(".")[0]
    is_named = "-" in word or any(map(str.isdigit, first))
    return is_named or match[1].lower() not in redaction_rules.AMBIGUOUS_DOMAINS


def is_public(domain: str) -> bool:
    """Whether it is a site that messages of programs refer to."""
    return any(domain == public or domain.endswith(f".{public}") for public in redaction_rules.PUBLIC_DOMAINS)


def is_private_domain(word: str) -> bool:
    """Whether a word is the name of a host with a domain that no message of a program refers to."""
    return is_domain(word) and not is_public(word)
