"""What NCCL warns of has a meaning of its own, not only the catch-all for warnings; its notes belong to a family."""

from __future__ import annotations

import pytest

from tests.currency.message_texts import INFO, WARNING, known_texts, texts
from tests.currency.unknown_strings import NOTE_PREFIX, WARNING_PREFIX, unknown_messages


@pytest.mark.parametrize(("level", "prefix", "most"), [(WARNING, WARNING_PREFIX, 0.01), (INFO, NOTE_PREFIX, 0.05)])
def test_all_but_few_messages_of_the_newest_releases_are_known(level: str, prefix: str, most: float) -> None:
    of_releases = known_texts(level)
    wanted = sorted({text for found in of_releases.values() for text in found})
    unknown = {*unknown_messages(wanted, is_fragmentary=False, prefixes=(prefix,))}

    missing = {release: sorted(unknown & {text.strip() for text in found}) for release, found in of_releases.items()}

    assert {release: few for release, few in missing.items() if len(few) > most * len(of_releases[release])} == {}


def test_texts_that_macros_put_together_are_read() -> None:
    code = (
        'WARN("Call to " name " failed: %s", strerror(errno)); \\\n'
        'WARN("Size %" PRIu64 " of "\n     "%s is odd\\nSee the guide", size, name);\n'
        'WARN("%s", text); INFO(NCCL_NET, "no warning");\n'
    )

    assert list(texts(code, WARNING)) == [("Call to %s failed: %s", 1), ("Size %ld of %s is odd", 2)]
    assert list(texts(code, INFO)) == [("no warning", 4)]
