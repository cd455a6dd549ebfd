"""Conversion of the tables to an image, and to a snapshot that Apache Kafka can load.

Inside a metadata transaction there is no state to export. Tables with redacted secrets are
rejected, because a node would use the mask as the secret.

The timestamp of a state before the published end is that of the last change or append up to it.
Records without a change, such as Kafka's NoOpRecord, are only in ``log``, which is optional.
"""

from __future__ import annotations

import os

from pyspark.sql import functions as sf

from raftlog_state.errors import TablesError
from raftlog_state.image import MetadataImage
from raftlog_state.snapshot_writer import ExportedSnapshot, hidden_secrets, write_snapshot

from .latest import rows_of_state
from .progress import image_of_rows, inside_of_transaction
from .publication import Publication
from .schema import BY_NAME, STATE


def image_of(publication: Publication, offset: int) -> MetadataImage:
    """Return the state after an offset. Raises ``TablesError`` inside a metadata transaction."""
    _check_outside_of_transactions(publication, offset)
    with publication.store.errors(STATE):
        rows = rows_of_state(publication.rows(None, offset).toArrow())
    time_us = publication.last_time_us(offset)
    return image_of_rows(rows, publication.progress, offset, time_us)


def export(publication: Publication, offset: int, path: str | os.PathLike[str]) -> ExportedSnapshot:
    """Write the state after an offset to a snapshot.

    Raises:
        TablesError: secrets are redacted, or the offset is inside a metadata transaction.
    """
    image = image_of(publication, offset)
    hidden = list(hidden_secrets(image))
    if hidden:
        record, field, owner = hidden[0]
        raise TablesError(
            place=publication.place,
            reason=f"{len(hidden)} secrets are redacted, e.g. {field} of {record}, {owner}",
            remedy="export from the log itself, or create tables with redact=False",
        )
    return write_snapshot(image, path)


def _check_outside_of_transactions(publication: Publication, offset: int) -> None:
    if offset == publication.offset:
        return  # appends end outside of transactions
    table = BY_NAME["transactions"]
    is_inside = (sf.col("begin_offset") <= offset) & (sf.col("end_offset") > offset + 1)
    with publication.store.errors(STATE):
        found = publication.rows(table, publication.offset).where(is_inside).head(1)
    if found:
        raise inside_of_transaction(publication.place, offset, found[0]["begin_offset"])
