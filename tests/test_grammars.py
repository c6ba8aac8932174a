"""Every grammar, in two engines: Lark is the reference, the pattern derived from the same rule does the work."""

from __future__ import annotations

import re
from copy import copy
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.lark import LarkStrategy

from ncclforensics.data import user_cache
from ncclforensics.errors import GrammarError
from ncclforensics.extensions.examples import fields_by_pattern as by_pattern
from ncclforensics.formats import all_formats, dialect
from ncclforensics.grammar import compiler, folders, grammar_file
from ncclforensics.grammar.grammar_file import Grammar
from ncclforensics.grammar.patterns import Shape, may_match
from ncclforensics.grammar.values import GRAMMAR as GRAMMAR_OF_VALUES
from ncclforensics.grammar.values import find_values, parse_value
from tests.budget import drawn, examples

DECORATIONS = ("launcher", "deduplicated")  # stand around lines, and are tried before all others
SHAPES = [shape for name in grammar_file.names() for shape in grammar_file.load(name).shapes]
LINES = [shape for shape in SHAPES if shape.grammar != GRAMMAR_OF_VALUES]  # values are looked for by name
# What is left of a line once it has been read: no control characters, no ends of lines of any kind.
READABLE = st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"))

EXAMPLES = 1  # of every rule; there are many rules
MOST_EXAMPLES = 3  # about so many of a rule: of one with 80 alternatives, Lark takes 0.2 s for each line

every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.frame)


@cache
def all_lines(name: str) -> LarkStrategy:
    """What a grammar allows; to take it apart takes longer than to draw from it."""
    return LarkStrategy(grammar_file.load(name).parser, None, {}, READABLE)


def lines_of(shape: Shape) -> LarkStrategy:
    """What one rule allows."""
    lines = copy(all_lines(shape.grammar))
    lines.start = st.just(lines.names_to_symbols[shape.frame])
    return lines


Fields = tuple[str, dict[str, str]]  # the alternative, and column -> text


def is_read_by_lark(shape: Shape, text: str, fields: Fields | None) -> bool:
    return grammar_file.load(shape.grammar).is_read_as(shape.frame, text, fields)


@cache
def examples_by_pattern() -> list[tuple[str, str, Fields | None]]:
    """Frame, example and fields of all examples of all rules."""
    return [(shape.frame, text, by_pattern(shape, text)) for shape in SHAPES for text in shape.examples]


def test_every_rule_has_an_example_directly_above_it() -> None:
    assert [f"{shape.grammar}.lark: {shape.frame}" for shape in SHAPES if not shape.examples] == []


@pytest.mark.parametrize("path", sorted(folders.GRAMMARS.rglob("*.lark")), ids=lambda path: path.stem)
def test_no_terminal_matches_nothing(path: Path) -> None:
    """Lark refuses the whole grammar then; what may be absent is optional where it stands."""
    names = [name for name, found in compiler._definitions(path).items() if found.is_term and "__" not in name[1:]]

    assert [name for name in names if re.fullmatch(compiler.part_regex(path, name), "")] == []


def test_every_pattern_of_a_rule_is_the_first_that_matches_some_example() -> None:
    """So that an alternative that is taken away, or one that hides a later one, is noticed."""
    unused = []
    for shape in SHAPES:
        matching = ([bool(re.search(pattern.regex, text)) for pattern in shape.patterns] for text in shape.examples)
        first = {hits.index(True) for hits in matching if any(hits)}
        unused += [f"{shape.frame} -> {p.form}: {p.regex}" for n, p in enumerate(shape.patterns) if n not in first]

    assert unused == []


def test_every_example_matches_a_pattern_of_its_rule() -> None:
    assert [(frame, example) for frame, example, fields in examples_by_pattern() if fields is None] == []


@pytest.mark.slow
@every_shape
def test_both_engines_find_the_same_fields_in_the_examples(shape: Shape) -> None:
    for example in drawn([*shape.examples], len(shape.examples) // MOST_EXAMPLES + 1):
        fields = by_pattern(shape, example)

        assert fields is not None
        assert is_read_by_lark(shape, example, fields), example


def test_no_rule_matches_the_example_of_a_later_rule() -> None:
    examples = pl.DataFrame(
        [(shape.frame, text) for shape in LINES for text in shape.examples], ["of", "text"], orient="row"
    )
    owners = {shape.frame: shape for shape in LINES}

    for rival in LINES:
        for pattern in rival.patterns:
            near = examples.filter(pl.col("text").str.contains(pattern.anchor, literal=True))
            claimed = near.filter(pl.col("text").str.contains(pattern.regex) & (pl.col("of") != rival.frame))
            for frame, text in claimed.iter_rows():
                owner = owners[frame]
                is_apart = (rival.grammar in DECORATIONS) != (owner.grammar in DECORATIONS)
                assert is_apart or rival.priority < owner.priority, f"{rival.frame} has a line of {frame}: {text}"


def test_every_line_that_matches_contains_the_anchor_the_literals_and_a_word() -> None:
    for shape in SHAPES:
        for example, pattern in product(shape.examples, shape.patterns):
            is_selected = pattern.anchor in example and may_match(example, pattern.literals, pattern.words)
            assert is_selected or not re.search(pattern.regex, example)


@pytest.mark.parametrize(
    ("rule", "literals"),
    [
        ('"rank " COUNT " of " COUNT2', ["rank ", " of "]),
        ('"rank" " " COUNT', ["rank "]),
        ('"rank " ("failed" | "refused") ": " COUNT', ["rank ", ": "]),
        ('"rank "? COUNT " of "', [" of "]),
        ('COUNT ("failed " COUNT2)+ "!"', ["failed ", "!"]),
        ('KIND "-" SPOKEN "-"', ["-", "word", "-"]),
    ],
)
def test_a_pattern_has_the_literals_that_stand_in_every_line(
    rule: str, literals: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminals = 'COUNT: INT\nCOUNT2: INT\nKIND: "START" | "END"\nSPOKEN: "word"\n'
    (shape,) = loaded(monkeypatch, tmp_path, f"spoken: {rule}\n{terminals}")

    assert [*shape.patterns[0].literals] == literals
    assert may_match("".join(literals), literals, [""])
    assert not may_match(literals[-1], [*literals, "!"], [""])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ('"rank " COUNT', ("rank ",)),
        ('("failed" | "refused") ": " COUNT', ("failed", "refused")),
        ('("failed" | KIND) ": " COUNT', ("failed", "START", "END")),
        ('("failed" | "refused")? COUNT', ("",)),
        ('COUNT ("failed" | "refused")+', ("failed", "refused")),
        ('KIND " " COUNT', ("START", "END")),
    ],
)
def test_a_pattern_has_the_words_of_which_a_line_has_one(
    rule: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shape,) = loaded(monkeypatch, tmp_path, f'spoken: {rule}\nCOUNT: INT\nKIND: "START" | "END"\n')

    assert tuple(shape.patterns[0].words) == words


def test_every_pattern_compiles_and_fills_its_columns() -> None:
    for shape in SHAPES:
        for pattern in shape.patterns:
            fields = pl.Series(["no line of ours"]).str.extract_groups(pattern.regex)

            assert set(fields.struct.fields) == set(pattern.columns) <= set(shape.columns), shape.frame


@pytest.mark.slow
@every_shape
def test_both_engines_find_the_same_fields_in_generated_lines(shape: Shape) -> None:
    @examples(EXAMPLES)
    @given(lines_of(shape))
    def agree(text: str) -> None:
        fields = by_pattern(shape, text)

        assert fields is not None
        assert is_read_by_lark(shape, text, fields)

    agree()


@pytest.mark.slow
@every_shape
def test_both_engines_refuse_and_accept_the_same_distorted_lines(shape: Shape) -> None:
    words = sorted({word for example in shape.examples for word in example.split(" ")})

    @examples(EXAMPLES)
    @given(st.data())
    def agree(data: st.DataObject) -> None:
        line = data.draw(st.sampled_from(shape.examples)).split(" ")
        place = data.draw(st.integers(0, len(line) - 1))
        line[place : place + data.draw(st.integers(0, 1))] = data.draw(
            st.lists(st.sampled_from(words) | st.text(READABLE, max_size=3), max_size=2)
        )
        text = " ".join(line)[: data.draw(st.integers(1, 400))] or " "

        assert is_read_by_lark(shape, text, by_pattern(shape, text))

    agree()


# Values inside fields


def test_values_are_found_in_the_order_of_the_texts_with_their_types() -> None:
    texts = pl.Series(['<cpu numaid="0"><gpu dev="1"/></cpu>', None, "no tag", "</system>"])

    tags = find_values(texts, "xml_tag")

    assert tags.rows() == [
        (0, "start", "cpu", ' numaid="0"'),
        (0, "empty", "gpu", ' dev="1"'),
        (0, "end", "cpu", None),
        (3, "end", "system", None),
    ]
    assert find_values(pl.Series(["0-3,8"]), "number_range")["last"].to_list() == [3, None]


@pytest.mark.parametrize("text", ["400 Gb/sec (4X NDR) ", "rate 400", "", None])
def test_a_text_that_is_not_one_value_as_a_whole_is_none(text: str | None) -> None:
    assert parse_value(text, "port_rate") is None


# What a line pattern cannot say is an error when the grammar loads.


def loaded(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> tuple[Shape, ...]:
    (folder / f"{folder.name}.lark").write_text("%import .terminals (INT, HEX, NAME, WORD, TEXT)\n" + text)
    monkeypatch.setattr(folders, "_FOLDERS", [folders.GRAMMARS, folder])
    return Grammar(folder.name).shapes


def test_a_rule_that_refers_to_itself_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GrammarError, match=r"\.lark, rule nested: `nested` refers to itself"):
        loaded(monkeypatch, tmp_path, 'nested: "(" nested ")" | COUNT\nCOUNT: INT\n')


def test_a_priority_above_zero_is_refused_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = loaded(monkeypatch, tmp_path, '\neager.1: "a" COUNT\nCOUNT: INT\n')

    with pytest.raises(GrammarError, match=r"\.lark:3: `eager` has priority 1"):
        replace(dialect(), shapes=(*dialect().shapes, *shapes)).candidates  # noqa: B018


def test_an_undefined_terminal_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GrammarError, match=r"\.lark: .*MISSING.* not defined"):
        loaded(monkeypatch, tmp_path, 'lost: "a" MISSING\n')


def test_a_version_of_lark_that_cannot_be_used_is_named_with_the_range_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("lark.load_grammar.GrammarBuilder")

    with pytest.raises(GrammarError, match=r"lark .* cannot be used .*install lark>=1\.3\.0,<2"):
        loaded(monkeypatch, tmp_path, 'counted: "a" COUNT\nCOUNT: INT\n')


def test_a_pattern_with_flags_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GrammarError, match="two engines do not share"):
        loaded(monkeypatch, tmp_path, "loud: WHAT\nWHAT: /abc/i\n")


def test_a_look_ahead_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GrammarError, match="two engines do not share"):
        loaded(monkeypatch, tmp_path, "ahead: WHAT\nWHAT: /a(?=b)/\n")


def test_a_terminal_that_would_borrow_the_dtype_of_a_base_terminal_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(GrammarError, match="PTR is a base terminal"):
        loaded(monkeypatch, tmp_path, "borrowed: PTR\nPTR: /[a-z]+/\n")


def test_a_repeated_column_in_one_alternative_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GrammarError, match="`COUNT` stands twice"):
        loaded(monkeypatch, tmp_path, 'twice: COUNT " of " COUNT\nCOUNT: INT\n')


def test_a_counted_repetition_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GrammarError, match=r"cannot become a line pattern|not supported"):
        loaded(monkeypatch, tmp_path, 'thrice: "a"~3 COUNT\nCOUNT: INT\n')


def test_the_same_column_may_stand_in_two_alternatives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shape,) = loaded(monkeypatch, tmp_path, 'one: "a " COUNT | "b " COUNT -> second\nCOUNT: INT\n')

    assert [pattern.form for pattern in shape.patterns] == ["", "second"]


def test_a_column_has_the_dtype_of_the_terminal_it_is_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'typed: COUNT " " OPCOUNT " " WHAT " " KIND\nCOUNT: INT\nOPCOUNT: HEX\nWHAT: WORD\nKIND: "a" | "b"\n'

    (shape,) = loaded(monkeypatch, tmp_path, text)

    assert shape.schema == {
        "form": pl.Categorical(),
        "count": pl.Int64(),
        "opcount": pl.Int64(),
        "what": pl.String(),
        "kind": pl.Categorical(),
    }


@pytest.mark.parametrize(
    ("end", "is_open"),
    [
        ('" " COUNT', True),
        ('" " PEER', True),
        ('(" " COUNT)?', True),
        ('" " COUNT " ms"', False),
        ('" " KIND', False),
        ('" " SAYS', False),
        ('" " _COUNT', False),
    ],
)
def test_a_shape_is_open_where_a_cut_would_leave_a_wrong_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, is_open: bool
) -> None:
    terminals = 'COUNT: INT\n_COUNT: INT\nPEER: /[^ ]+/\nKIND: "START" | "END"\nSAYS: TEXT\nWHO: NAME\n'

    (shape,) = loaded(monkeypatch, tmp_path, f'ended: "took " WHO {end}\n{terminals}')

    assert [pattern.is_open for pattern in shape.patterns] == [is_open]


# What has been derived is remembered; nothing depends on that.


def shapes_of(name: str) -> tuple[Shape, ...]:
    return Grammar(name).shapes


@pytest.fixture
def _without_compiled_grammars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(user_cache, "SHIPPED", tmp_path / "nothing")


@pytest.mark.usefixtures("_without_compiled_grammars")
def test_cached_shapes_equal_compiled_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    derived, remembered = shapes_of("operation"), shapes_of("operation")

    assert list((tmp_path / "ncclforensics").iterdir())
    assert derived == remembered == grammar_file.load("operation").shapes


@pytest.mark.usefixtures("_without_compiled_grammars")
def test_a_grammar_loads_without_a_writable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a-file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a-file"))

    assert shapes_of("operation") == grammar_file.load("operation").shapes


@pytest.mark.usefixtures("_without_compiled_grammars")
def test_a_grammar_loads_without_a_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)

    assert shapes_of("operation") == grammar_file.load("operation").shapes


@pytest.mark.usefixtures("_without_compiled_grammars")
def test_a_damaged_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shapes_of("operation")
    for file in (tmp_path / "ncclforensics").iterdir():
        file.write_bytes(file.read_bytes()[:100])

    assert shapes_of("operation") == grammar_file.load("operation").shapes


def test_a_value_is_computed_where_what_was_shipped_is_of_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(user_cache, "SHIPPED", tmp_path)
    (tmp_path / "topic-name.json").write_text('["the key", [1]]')

    assert user_cache.kept("topic", "name", "the key", list) == [1]
    assert user_cache.kept("topic", "name", "another key", lambda: [2]) == [2]


def test_what_was_compiled_of_files_that_were_written_meanwhile_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(user_cache, "SHIPPED", tmp_path / "nothing")

    assert user_cache.kept("topic", "name", "of the old text", lambda: ["new"], lambda: False) == ["new"]
    assert user_cache.kept("topic", "name", "of the old text", lambda: ["old"]) == ["old"]


def test_a_dialect_holds_the_shapes_of_a_grammar_once_however_many_formats_name_it() -> None:
    frames = [shape.frame for shape in dialect().with_all_formats.shapes]

    assert "collected" in [name for one in all_formats().values() for name in one.GRAMMARS]
    assert sorted(frames) == sorted(set(frames))
