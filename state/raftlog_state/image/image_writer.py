"""Metadata records of a snapshot of an image, as Kafka writes them.

Entities are in Kafka's order: metadata.version, other features, migration state, brokers,
controllers, topics (each followed by its partitions), configs, quotas, producer ids, ACLs, SCRAM
credentials, tokens. Within an entity, Kafka uses the order of a hash map. Here, records are sorted
by key, so that equal images produce equal records.

metadata.version determines the versions of the records and which records exist.

Source: Kafka ``MetadataImage.write``, ``MetadataVersion``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from raftlog_state.records import DecodedRecord, MetadataRecord

from .metadata_image import METADATA_VERSION, MetadataImage
from .record_versions import (
    LEVEL_CONTROLLERS,
    LEVEL_SCRAM,
    LEVEL_TOKENS,
    LEVEL_ZK_MIGRATION,
    LEVEL_ZK_MIGRATION_LAST,
    RecordVersions,
    partition_record,
)
from .row_schema import row_writer
from .rows import (
    RECORD_ROW_TYPES,
    AclRow,
    BrokerRow,
    ConfigRow,
    ControllerRow,
    Entity,
    FeatureRow,
    PartitionRow,
    ProducerIdsRow,
    QuotaRow,
    RecordRow,
    ScramRow,
    TokenRow,
    TopicRow,
    ZkMigrationRow,
)


def image_records(image: MetadataImage) -> Iterator[DecodedRecord]:
    """Yield the metadata records of a snapshot of ``image``, each with its version.

    Raises:
        UnsupportedVersionError: metadata.version is too low for a row of the image.
    """
    versions = RecordVersions.of_image(image)
    yield from _feature_records(image, versions)
    for broker in image.rows_of(BrokerRow):
        yield DecodedRecord(versions.register_broker, _record_of(broker))
    for controller in image.rows_of(ControllerRow):
        versions.require(LEVEL_CONTROLLERS, ControllerRow.RECORD, "controllers are registered")
        yield DecodedRecord(0, _record_of(controller))
    for topic in image.rows_of(TopicRow):
        yield DecodedRecord(0, _record_of(topic))
        for key in sorted(image.group((Entity.PARTITION, topic.topic_id, ""))):
            row = image.find(PartitionRow, *key)
            assert row is not None, "the keys of a group are those of rows"
            yield DecodedRecord(versions.partition, partition_record(row, versions))
    yield from _access_records(image, versions)


def _feature_records(image: MetadataImage, versions: RecordVersions) -> Iterator[DecodedRecord]:
    rows = image.rows_of(FeatureRow)
    for row in sorted(rows, key=lambda row: (row.name != METADATA_VERSION, row.name)):
        yield DecodedRecord(0, _record_of(row))
    if LEVEL_ZK_MIGRATION <= versions.level <= LEVEL_ZK_MIGRATION_LAST:
        for migration in image.rows_of(ZkMigrationRow):
            yield DecodedRecord(0, _record_of(migration))


def _access_records(image: MetadataImage, versions: RecordVersions) -> Iterator[DecodedRecord]:
    for config in image.rows_of(ConfigRow):
        yield DecodedRecord(0, _record_of(config))
    for quota in image.rows_of(QuotaRow):
        yield DecodedRecord(0, _record_of(quota))
    for ids in image.rows_of(ProducerIdsRow):
        # A snapshot does not contain the broker of the last block.
        yield DecodedRecord(0, _record_of(ProducerIdsRow(next_producer_id=ids.next_producer_id)))
    for acl in image.rows_of(AclRow):
        yield DecodedRecord(0, _record_of(acl))
    for credential in image.rows_of(ScramRow):
        versions.require(LEVEL_SCRAM, ScramRow.RECORD, "SCRAM credentials exist")
        yield DecodedRecord(0, _record_of(credential))
    for token in image.rows_of(TokenRow):
        versions.require(LEVEL_TOKENS, TokenRow.RECORD, "delegation tokens exist")
        yield DecodedRecord(0, _record_of(token))


def _record_of(row: RecordRow) -> MetadataRecord:
    return _WRITERS[type(row)](row)


_WRITERS: Final[Mapping[type[RecordRow], Callable[[Any], MetadataRecord]]] = {
    kind: row_writer(kind, kind.RECORD) for kind in RECORD_ROW_TYPES if kind is not PartitionRow
}
