"""Statements that create the views of a schema."""

from __future__ import annotations

from raftlog_state.tables.comments import (
    HISTORY_COMMENTS,
    OTHER_COMMENTS,
    TABLE_COMMENTS,
    column_comments,
)
from raftlog_state.tables.schema import TYPED_TABLES


def test_no_comment_of_a_view_has_a_character_that_ends_a_literal() -> None:
    """How a quote is written in a literal depends on settings of the session."""
    comments = {
        *TABLE_COMMENTS.values(),
        *HISTORY_COMMENTS.values(),
        *OTHER_COMMENTS.values(),
        *(text for table in TYPED_TABLES for text in column_comments(table).values()),
    }
    assert len(comments) > 50
    assert [text for text in comments if {"'", '"', "\\", "\n"} & {*text}] == []
