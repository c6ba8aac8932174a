"""What programs that no grammar knows state to have failed: the message, what it is about, and when it was printed."""

from __future__ import annotations

from collections.abc import Iterable

import polars as pl

from ncclforensics.data.failure_topics import OF_WARNINGS, TOPICS
from ncclforensics.frames.columns import ORIGIN, count_behind, text_of
from ncclforensics.frames.registry import analysis
from ncclforensics.grammar.grammar_file import load

PROGRAM_FAILURE = {
    **ORIGIN,
    "host": pl.Categorical(),  # of the host, the process and the rank that a launcher's tag names; null without one
    "pid": pl.Int32(),
    "rank": pl.Int32(),
    "statement": pl.String(),  # without the time, the level and other parts that a logger puts in front
    "alike": pl.String(),  # the statement without its numbers: equal for repetitions
    "topic": pl.String(),  # a key of TOPICS; null where the words are about none of them
    "moment": pl.String(),  # as printed in front; null without one
    "has_level": pl.Boolean(),  # a logger prints the level of an error; else the words say it
    "is_signed": pl.Boolean(),  # something beside the words shows that a program printed it, and no person wrote it
    "is_warning": pl.Boolean(),  # a logger prints a lower level
    "is_of_kernel": pl.Boolean(),  # a line of the kernel's log
    "is_of_end": pl.Boolean(),  # tells only that something ends because of what was stated before
    "is_repeated_attempt": pl.Boolean(),  # the program tries again
    "lines_behind": pl.Int64(),  # in its file
}
NOTE_LEVELS = ("INFO", "DEBUG", "I")  # values of `launcher_level`
MILD_LEVELS = (*NOTE_LEVELS, "WARNING", "W")
STATED = ["level", "words", "stack", "value"]  # forms of `unread_error` that state a failure
DIGITS = list("0123456789")
# Columns of PyTorch's tag in front of a line.
RANKS = ("rank_of_level", "rank_of_note", "rank_of_words", "rank_of_stack")
GRAMMAR = "unread"


@analysis(PROGRAM_FAILURE, of=("unread_error",))
def program_failure(unread_error: pl.DataFrame, source: pl.DataFrame) -> pl.DataFrame:
    """One row per line that states a failure by the level of a logger or by its words, and that no grammar knows.

    Warnings are among them where their words are about what fails jobs.
    """
    part = load(GRAMMAR).part_regex
    form = text_of("form")
    printed = pl.coalesce(text_of("stated_by_level"), text_of("stated_by_words"), text_of("stated_mildly"))
    head = pl.col("printed").str.extract(f"^((?:{part('_head')})?)").fill_null("")
    rest = pl.col("printed").str.replace(f"^(?:{part('_head')})", "")
    is_field = pl.col("head").str.ends_with('"')
    statement = pl.when(is_field).then(rest.str.replace(part("_tail"), "")).otherwise(rest)
    words = pl.col("statement")
    topic = topic_of(words, TOPICS)
    note, word = part("_note_first"), part("_with_word")
    is_note = pl.any_horizontal(column.str.contains(note) & ~column.str.contains(word) for column in (printed, words))
    is_mild = (form == "mild") | pl.col("printed").str.contains(part("_mild_first"))
    is_mild |= text_of("launcher_level").is_in(MILD_LEVELS).fill_null(value=False)
    without_ids = words.str.replace_all(rf"\b(?:{part('_in_base_16')})\b", "")
    return (
        unread_error.filter(form.is_in(["level", "words", "mild"]))
        .join(source.select("source", "lines"), on="source", how="left", maintain_order="left")
        .with_columns(printed=printed.str.strip_chars())
        .with_columns(head=head)
        .with_columns(statement=statement.str.strip_chars())
        .pipe(_with_signs, form)
        .with_columns(topic=topic, is_warning=is_mild)
        .filter(
            (words != "")
            & ~words.str.contains(f"{part('_place_alone')}|{part('_goes_on')}")
            & ((form == "level") | words.str.contains(part("_two_words")))  # a name alone states nothing
            & ~(is_note | text_of("launcher_level").is_in(NOTE_LEVELS).fill_null(value=False))
            & (~pl.col("is_warning") | pl.col("topic").is_in(OF_WARNINGS).fill_null(value=False))
        )
        .select(
            *ORIGIN,
            host=pl.col("launcher_node").cast(pl.Categorical()),
            pid=pl.col("launcher_pid").cast(pl.Int32()),
            rank=pl.coalesce(*RANKS, "launcher_rank").cast(pl.Int32()),
            statement=words,
            alike=without_ids.str.replace_many(dict.fromkeys(DIGITS, "")),
            topic="topic",
            moment=pl.col("head").str.extract(f"({part('_when')})"),
            has_level=form == "level",
            is_signed="is_signed",
            is_warning="is_warning",
            is_of_kernel=pl.col("printed").str.contains(part("_of_kernel")),
            is_of_end=words.str.contains(part("_of_the_end")),
            is_repeated_attempt=words.str.contains(part("_repeated_attempt")),
            lines_behind=count_behind(),
        )
        .sort("pos")
    )


def _with_signs(stated: pl.DataFrame, form: pl.Expr) -> pl.DataFrame:
    """Add `is_signed`, and leave out what a person says in words alone, and values of records that quote no message.

    Also left out are rows of tables, and commands that name a failure.

    A logger, a launcher, a name in front, an answer of the system, or a value shows that a program printed a line;
    words by which a person speaks leave open who wrote what holds a value.
    """
    part, words = load(GRAMMAR).part_regex, pl.col("statement")
    is_logged = pl.any_horizontal(
        form != "words",
        pl.any_horizontal(pl.col("launcher_pid", "launcher_rank", "launcher_node").is_not_null()),
        pl.col("head").str.contains(part("_when")),
    )
    is_like_a_program = pl.col("printed").str.contains(part("_named_part"))
    is_like_a_program |= words.str.contains(f"{part('_system_answer')}|{part('_value')}")
    is_like_a_person = words.str.contains(part("_of_a_person"))
    is_value = pl.col("printed").str.contains(part("_field"))
    is_value &= ~pl.col("printed").str.contains(part("_field_that_states"))
    is_unprinted = is_value | pl.col("printed").str.contains(part("_written"))
    is_unprinted |= is_like_a_person & ~is_like_a_program
    return stated.filter(is_logged | ~is_unprinted).with_columns(
        is_signed=is_logged | (is_like_a_program & ~is_like_a_person)
    )


def is_strong() -> pl.Expr:
    """Whether a row has the level of an error, or words about a topic that a program printed."""
    return pl.col("has_level") | (pl.col("topic").is_not_null() & pl.col("is_signed"))


def stated_mildly(unread_error: pl.DataFrame) -> pl.DataFrame:
    """Return the lines with words of a failure to which a logger gives the level of a warning, or less."""
    return unread_error.filter(text_of("stated_mildly").str.contains(load(GRAMMAR).part_regex("_with_word")))


def topic_of(words: pl.Expr, topics: Iterable[str]) -> pl.Expr:
    """The first of these topics (keys of TOPICS) that words are about; null if none is."""
    part = load(GRAMMAR).part_regex
    return pl.coalesce(pl.when(words.str.contains(part(f"_about_{name}"))).then(pl.lit(name)) for name in topics)


def compares_ranks(column: str) -> pl.Expr:
    """Whether the message of an exception tells of a difference between ranks, of which any may have raised it."""
    return text_of(column).str.contains(load(GRAMMAR).part_regex("_compares_ranks")).fill_null(value=False)


def is_of_others(column: str) -> pl.Expr:
    """Whether the message of an exception tells of a wait in vain, an earlier error, or a difference between ranks."""
    parts = "|".join(load(GRAMMAR).part_regex(name) for name in ("_waits_in_vain", "_passes_on"))
    return text_of(column).str.contains(parts).fill_null(value=False) | compares_ranks(column)
