"""What NCCL warns of has a meaning of its own: not only the catch-all for warnings."""

from __future__ import annotations

from pathlib import Path

from tests.currency.unknown_strings import WARNING_PREFIX, unknown_messages
from tests.currency.warning_texts import known_texts, texts

MOST_UNKNOWN = 0.01  # of the texts of a release


def test_all_but_few_warnings_of_the_newest_releases_have_a_meaning_of_their_own() -> None:
    of_releases = known_texts()
    wanted = sorted({text for found in of_releases.values() for text in found})
    unknown = {*unknown_messages(wanted, is_fragmentary=False, prefixes=(WARNING_PREFIX,))}

    missing = {release: sorted(unknown & {text.strip() for text in found}) for release, found in of_releases.items()}

    assert {
        release: few for release, few in missing.items() if len(few) > MOST_UNKNOWN * len(of_releases[release])
    } == {}


def test_texts_that_macros_put_together_are_read(tmp_path: Path) -> None:
    source = tmp_path / "a.cc"
    source.write_text(
        'WARN("Call to " name " failed: %s", strerror(errno)); \\\n'
        'WARN("Size %" PRIu64 " of "\n     "%s is odd\\nSee the guide", size, name);\n'
        'WARN("%s", text); INFO(NCCL_NET, "no warning");\n'
    )

    assert list(texts(source)) == ["Call to %s failed: %s", "Size %ld of %s is odd"]
