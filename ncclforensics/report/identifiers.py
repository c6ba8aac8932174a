"""Recognise identifiers by their form in any text: addresses, hardware addresses, UUIDs, names of domains, jobs, users.

What stands in a text is not known here, so nothing of it is described by a grammar.
"""

from __future__ import annotations

import ipaddress
import re

import polars as pl

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
# An address, or the first and the last of a range, between any signs; behind a dash may be a version.
IPV4 = re.compile(
    r"(?<![0-9A-Za-z.-])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?:-(?:[0-9]{1,3}\.){3}[0-9]{1,3})?(?![0-9A-Za-z]|\.[0-9])"
)
HOST_OF_ADDRESS = re.compile(r"(?<![0-9A-Za-z-])ip-[0-9]{1,3}(?:-[0-9]{1,3}){3}(?![0-9A-Za-z-])")
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
_GUID = re.compile(r"(?:0[xX])?(?:[0-9a-fA-F]{16}|[0-9a-fA-F]{32}|[0-9a-fA-F]{40})")
_DOMAIN = re.compile(r"(?:[0-9A-Za-z](?:[0-9A-Za-z-]*[0-9A-Za-z])?\.)+([A-Za-z]{2,})")
# The number or name of a job: as schedulers print it, in names of their files, behind variables and options.
JOBS = re.compile(
    r"(?i:\bjob(?:s|[ _-]?id|[ _-]?number)?\b[\"']?(?: ?[=:#] ?| )[\"']?([0-9]{4,}))"
    r"|\bStepId=([0-9]{4,})|\*\*\* (?:STEP|JOB) ([0-9]{4,})|\b(?:STEP|JOB) ([0-9]{4,})\.[0-9]+\b|\bslurm-([0-9]{4,})"
    r"|\bJob <([0-9]{4,})>|\b(raysubmit_[0-9A-Za-z]{8,})"
    rf"|\b(?:{'|'.join(redaction_rules.JOB_VARIABLES)})\b[\"']?\s*[=:]\s*[\"']?([0-9A-Za-z_.-]{{3,}})"
    r"|--(?:rdzv|run|job)[-_](?:id|name)[= ][\"']?([0-9A-Za-z_.-]{3,})|\bmax_restarts.{0,80}\brun_id\s*[=:]\s*(\S{3,})"
    r"|\brun_id\s*[=:]\s*([0-9A-Za-z_.-]{3,})"
)
# The name of a user: a home folder, a variable, what `id`, sshd, PAM and sudo print.
USERS = re.compile(
    rf"[/\\](?:{'|'.join(redaction_rules.HOMES)})[/\\]+([0-9A-Za-z_][0-9A-Za-z_.-]*)"
    r"|(?:^|[\s\"'=:])~([a-z_][0-9a-z_-]*)"
    r"|\bsession (?:opened|closed) for user ([0-9A-Za-z_][0-9A-Za-z_.-]*)|\bsudo(?:\[[0-9]+\])?: +(\S+) : "
    r"|\b(?:publickey|password) for (?:invalid user )?([0-9A-Za-z_][0-9A-Za-z_.-]*) from "
    rf"|\b(?:{'|'.join(redaction_rules.USER_VARIABLES)})\b[\"']?\s*[=:]\s*[\"']?([0-9A-Za-z_][0-9A-Za-z_.-]*)"
    r"|\buid=[0-9]+\(([^)\s]+)\)|\b(?:UserId|user|User|username)=([0-9A-Za-z_][0-9A-Za-z_.-]*)"
)

SERIAL_NUMBERS = re.compile(
    r"(?i:(?:\b|_)serial(?:[ _-]?(?:number|num|no))?\b[\"']?\s*[=:]\s*[\"']?([0-9A-Z-]*[0-9][0-9A-Z-]*))"
)
BUCKETS = re.compile(r"\b(?:[0-9A-Z_]*BUCKET(?:_NAME)?|bucket_name)[\"']?\s*[=:]\s*[\"']?([a-z0-9][a-z0-9.-]{2,62})")


def found(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return what the groups of a pattern with one group for each alternative find in a text."""
    return [next(group for group in match.groups() if group) for match in pattern.finditer(text)]


def found_in_file(pattern: re.Pattern[str], text: str) -> list[str]:
    """Return the same for the text of a file, each name once: Polars finds the places 40 times as fast as Python."""
    places = pl.Series([text]).str.extract_all(pattern.pattern).explode().drop_nulls().unique(maintain_order=True)
    return [name for place in places for name in found(pattern, place)]


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
    first = word.partition(".")[0]
    is_named = "-" in word or any(map(str.isdigit, first))
    return is_named or match[1].lower() not in redaction_rules.AMBIGUOUS_DOMAINS


def is_public(domain: str) -> bool:
    """Whether it is a site that messages of programs refer to."""
    return any(domain == public or domain.endswith(f".{public}") for public in redaction_rules.PUBLIC_DOMAINS)
