"""Characters that web pages, word processors and chats put in the place of plain ones, and those that none shows."""

from __future__ import annotations

# The left ones are what a browser or an editor shows for the right ones, which NCCL printed (Unicode, General
# Punctuation; CommonMark, "smart" punctuation).
CHARACTERS = {
    **dict.fromkeys("\u00a0\u2002\u2003\u2007\u2009\u202f\u3000", " "),
    **dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff", ""),
    **dict.fromkeys("\u2018\u2019\u201a\u2032", "'"),
    **dict.fromkeys("\u201c\u201d\u201e\u2033", '"'),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
    "\u2026": "...",
    "\u2192": "->",
    "\uff1a": ":",
    "\uff0c": ",",
    "\uff08": "(",
    "\uff09": ")",
}

# References as the serialisers of HTML and XML write them (HTML Standard, "Escaping a string"; mpirun -xml; rsyslog's
# escapes of control characters).
ENTITIES = {
    **dict.fromkeys(("&lt;", "&#60;", "&#x3c;", "&#x3C;"), "<"),
    **dict.fromkeys(("&gt;", "&#62;", "&#x3e;", "&#x3E;"), ">"),
    **dict.fromkeys(("&quot;", "&#34;", "&#034;", "&#x22;"), '"'),
    **dict.fromkeys(("&apos;", "&#39;", "&#039;", "&#x27;"), "'"),
    **dict.fromkeys(("&nbsp;", "&#160;", "&#xa0;", "&#xA0;"), " "),
    **dict.fromkeys(("&#10;", "&#010;", "&#13;", "&#013;", "&#xd;", "&shy;"), ""),
    **dict.fromkeys(("&#47;", "&#x2f;", "&#x2F;"), "/"),
    **dict.fromkeys(("&#96;", "&#x60;"), "`"),
    **dict.fromkeys(("&#91;", "&#x5b;", "&#x5B;"), "["),
    **dict.fromkeys(("&#93;", "&#x5d;", "&#x5D;"), "]"),
    **dict.fromkeys(("&ndash;", "&mdash;", "&minus;"), "-"),
    **dict.fromkeys(("&#61;", "&#x3D;"), "="),
    "&hellip;": "...",
    "&rarr;": "->",
    "&amp;": "&",
    "&#38;": "&",
    "#011": " ",
}

# Backslashes that Markdown wants before its own signs (CommonMark, "Backslash escapes").
MARKDOWN_ESCAPES = {f"\\{sign}": sign for sign in "_*|[]<>()`#~"}

# As a program writes characters of a text that it quotes (Python's repr, JSON).
QUOTED_CHARACTERS = {"\\t": " ", '\\"': '"', "\\'": "'", "\\\\": "\\"}

# What terminals interpret, and do not show (ECMA-48: CSI, OSC and the other strings, two-byte escapes; C0 and C1).
# A page or an editor may have put U+FFFD in the place of the escape character in front of a colour.
ESCAPES = (
    r"\ufffd\[[0-9;]*m|"
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
COLOUR_STARTS = ["\x1b", "\ufffd"]
CONTROLS = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
