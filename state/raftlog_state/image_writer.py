"""Metadata records of a snapshot of an image, as Kafka writes them.

The order of entities is Kafka's: metadata.version, other features, migration state, brokers,
controllers, topics each followed by its partitions, configs, quotas, producer ids, ACLs, SCRAM
credentials, tokens. Within an entity Kafka's order is that of a hash map; here it is that of the
keys, so that equal images produce equal records.

metadata.version determines the versions of the records and which records exist.

Source: Kafka ``MetadataImage.write``, ``MetadataVersion``.
"""

from __future__ import annotations

from collections.abc import Iterator

from .image import (
    METADATA_VERSION,
    AclRow,
    BrokerRow,
    ConfigRow,
    ControllerRow,
    Entity,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    ProducerIdsRow,
    QuotaRow,
    ScramRow,
    TokenRow,
    TopicRow,
    ZkMigrationRow,
)
from .record_versions import (
    LEVEL_CONTROLLERS,
    LEVEL_SCRAM,
    LEVEL_TOKENS,
    LEVEL_ZK_MIGRATION,
    LEVEL_ZK_MIGRATION_LAST,
    RecordVersions,
    partition_record,
)
from .records import (
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerFeature,
    ClientQuotaRecord,
    ConfigRecord,
    ControllerEndpoint,
    ControllerFeature,
    DecodedRecord,
    DelegationTokenRecord,
    EntityData,
    FeatureLevelRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
)


def image_records(image: MetadataImage) -> Iterator[DecodedRecord]:
    """Yield the metadata records of a snapshot of ``image``, each with its version.

    Raises:
        UnsupportedVersionError: metadata.version is too low for a row of the image.
    """
    versions = RecordVersions.of_image(image)
    yield from _feature_records(image, versions)
    for broker in image.rows_of(BrokerRow):
        yield DecodedRecord(versions.register_broker, _broker_record(broker))
    for controller in image.rows_of(ControllerRow):
        versions.require(LEVEL_CONTROLLERS, RegisterControllerRecord, "controllers are registered")
        yield DecodedRecord(0, _controller_record(controller))
    for topic in image.rows_of(TopicRow):
        yield DecodedRecord(0, TopicRecord(name=topic.name, topic_id=topic.topic_id))
        for key in sorted(image.group((Entity.PARTITION, topic.topic_id, ""))):
            row = image.find(PartitionRow, *key)
            assert row is not None, "the keys of a group are those of rows"
            yield DecodedRecord(versions.partition, partition_record(row, versions))
    yield from _access_records(image, versions)


def _feature_records(image: MetadataImage, versions: RecordVersions) -> Iterator[DecodedRecord]:
    rows = image.rows_of(FeatureRow)
    for row in sorted(rows, key=lambda row: (row.name != METADATA_VERSION, row.name)):
        yield DecodedRecord(0, FeatureLevelRecord(name=row.name, feature_level=row.level))
    if LEVEL_ZK_MIGRATION <= versions.level <= LEVEL_ZK_MIGRATION_LAST:
        for migration in image.rows_of(ZkMigrationRow):
            yield DecodedRecord(0, ZkMigrationStateRecord(zk_migration_state=migration.state))


def _broker_record(row: BrokerRow) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=row.broker_id,
        is_migrating_zk_broker=row.is_migrating_zk_broker,
        incarnation_id=row.incarnation_id,
        broker_epoch=row.broker_epoch,
        end_points=tuple(
            BrokerEndpoint(name=at.name, host=at.host, port=at.port, security_protocol=at.protocol)
            for at in row.endpoints
        ),
        features=tuple(
            BrokerFeature(
                name=of.name,
                min_supported_version=of.min_version,
                max_supported_version=of.max_version,
            )
            for of in row.features
        ),
        rack=row.rack,
        fenced=row.fenced,
        in_controlled_shutdown=row.in_controlled_shutdown,
        log_dirs=row.log_dirs,
        cordoned_log_dirs=row.cordoned_log_dirs,
    )


def _controller_record(row: ControllerRow) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=row.controller_id,
        incarnation_id=row.incarnation_id,
        zk_migration_ready=row.zk_migration_ready,
        end_points=tuple(
            ControllerEndpoint(
                name=at.name, host=at.host, port=at.port, security_protocol=at.protocol
            )
            for at in row.endpoints
        ),
        features=tuple(
            ControllerFeature(
                name=of.name,
                min_supported_version=of.min_version,
                max_supported_version=of.max_version,
            )
            for of in row.features
        ),
    )


def _access_records(image: MetadataImage, versions: RecordVersions) -> Iterator[DecodedRecord]:
    for config in image.rows_of(ConfigRow):
        yield DecodedRecord(
            0,
            ConfigRecord(
                resource_type=config.resource_type,
                resource_name=config.resource_name,
                name=config.name,
                value=config.value,
            ),
        )
    for quota in image.rows_of(QuotaRow):
        yield DecodedRecord(0, _quota_record(quota))
    for ids in image.rows_of(ProducerIdsRow):
        record = ProducerIdsRecord(
            broker_id=-1, broker_epoch=-1, next_producer_id=ids.next_producer_id
        )
        yield DecodedRecord(0, record)
    for acl in image.rows_of(AclRow):
        yield DecodedRecord(0, _acl_record(acl))
    for credential in image.rows_of(ScramRow):
        versions.require(LEVEL_SCRAM, UserScramCredentialRecord, "SCRAM credentials exist")
        yield DecodedRecord(0, _scram_record(credential))
    for token in image.rows_of(TokenRow):
        versions.require(LEVEL_TOKENS, DelegationTokenRecord, "delegation tokens exist")
        yield DecodedRecord(0, _token_record(token))


def _quota_record(row: QuotaRow) -> ClientQuotaRecord:
    return ClientQuotaRecord(
        entity=tuple(EntityData(entity_type=kind, entity_name=name) for kind, name in row.entity),
        key=row.quota,
        value=row.value,
        remove=False,
    )


def _acl_record(row: AclRow) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=row.acl_id,
        resource_type=row.resource_type,
        resource_name=row.resource_name,
        pattern_type=row.pattern_type,
        principal=row.principal,
        host=row.host,
        operation=row.operation,
        permission_type=row.permission,
    )


def _scram_record(row: ScramRow) -> UserScramCredentialRecord:
    return UserScramCredentialRecord(
        name=row.user,
        mechanism=row.mechanism,
        salt=row.salt,
        stored_key=row.stored_key,
        server_key=row.server_key,
        iterations=row.iterations,
    )


def _token_record(row: TokenRow) -> DelegationTokenRecord:
    return DelegationTokenRecord(
        owner=row.owner,
        requester=row.requester,
        renewers=row.renewers,
        issue_timestamp=row.issue_timestamp_ms,
        max_timestamp=row.max_timestamp_ms,
        expiration_timestamp=row.expiration_timestamp_ms,
        token_id=row.token_id,
    )
