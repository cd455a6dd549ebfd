"""Exports of states: what the tools of others read in them is the state, whatever its names are."""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.support.cli import run

from raftlog.types import ZERO_UUID
from raftlog_state.controller.controller_state import BROKER, CLIENT_METRICS, GROUP, TOPIC
from raftlog_state.enums import ACL_OPERATIONS
from raftlog_state.exports import FORMS, Exported, export
from raftlog_state.exports.exported import number_text, operation_name
from raftlog_state.exports.strimzi import yaml_lines, yaml_text
from raftlog_state.exports.terraform import hcl_text
from raftlog_state.image import (
    AclRow,
    BrokerRow,
    ConfigRow,
    FeatureRow,
    MetadataImage,
    PartitionRow,
    QuotaRow,
    Row,
    ScramRow,
    TopicRow,
)

NODE = Path(__file__).parents[2] / "data" / "kraft-logs" / "three-nodes-4.3.1" / "node-100"
EMPTY = MetadataImage.empty()
TERRAFORM = shutil.which("terraform")

NAMES = st.text("abAB01._-", min_size=1, max_size=12).filter(lambda one: one not in (".", ".."))
HOSTILE = st.sampled_from(
    [
        *(
            "it's",
            '"q"',
            "$(x)",
            "`x`",
            "${x}",
            "$${x}",
            "%{if x}",
            "a\\nb",
            "a\nb",
            "-x",
            "--",
            "#",
        ),
        *(
            "a,b",
            "a=b",
            "[x]",
            "x]",
            " x ",
            "é",
            "\u2028",
            "\x00",
            "\x7f",
            "\ud7ff",
            "😀",
            "yes",
            "~",
            "",
        ),
        *("*", "?", "&", "|", ";", "<", ">", "\t", "\\", "\\'", "1e3", "null", "---", ": ", "- a"),
    ]
)
TEXTS = st.one_of(HOSTILE, st.text(max_size=8), st.lists(HOSTILE, max_size=4).map("".join))
SETTINGS = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Those of ``make test``; ``make nightly`` has more examples."""


def broker(number: int) -> BrokerRow:
    return BrokerRow(
        broker_id=number,
        incarnation_id=ZERO_UUID,
        broker_epoch=0,
        rack=None,
        fenced=False,
        in_controlled_shutdown=False,
        is_migrating_zk_broker=False,
        endpoints=(),
        features=(),
        log_dirs=(),
        cordoned_log_dirs=None,
    )


def uuid(number: int) -> str:
    return f"{number:021d}A"


def topic(number: int, name: str, *replicas: tuple[int, ...]) -> list[Row]:
    rows: list[Row] = [TopicRow(topic_id=uuid(number), name=name)]
    for at, ids in enumerate(replicas):
        rows.append(
            PartitionRow(
                topic_id=uuid(number),
                partition_id=at,
                topic_name=name,
                replicas=ids,
                isr=ids,
                removing_replicas=(),
                adding_replicas=(),
                elr=(),
                last_known_elr=(),
                leader=ids[0],
                leader_recovery_state=0,
                leader_epoch=0,
                partition_epoch=0,
                directories=(ZERO_UUID,) * len(ids),
            )
        )
    return rows


def image_of(*rows: Row) -> MetadataImage:
    features = FeatureRow(name="metadata.version", level=30)
    return MetadataImage.from_rows(
        [features, broker(1), broker(2), *rows], offset=9, leader_epoch=1, timestamp_ms=0
    )


@st.composite
def images(draw: st.DrawFn) -> MetadataImage:
    """Strategy for states with hostile names, configs, principals and entities."""
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    rows: list[Row] = []
    for at, name in enumerate(names):
        replicas = draw(st.lists(st.sampled_from([(1,), (2,)]), min_size=1, max_size=3))
        rows += topic(at + 1, name, *replicas)
    others = ((BROKER, "1"), (BROKER, ""), (GROUP, "g"), (CLIENT_METRICS, "m"))
    for kind, resource in (*((TOPIC, name) for name in names), *others):
        values = TEXTS if kind == BROKER else st.sampled_from(["60000", "70000"])
        for name, value in draw(st.dictionaries(CONFIG_NAMES[kind], values, max_size=3)).items():
            rows.append(
                ConfigRow(resource_type=kind, resource_name=resource, name=name, value=value)
            )
    rows.extend(draw(st.lists(acls(), max_size=4)))
    for entity in draw(st.lists(ENTITIES, max_size=3, unique=True)):
        limit = draw(st.sampled_from([1.0, 12.5, 1e20, 99.0]))
        rows.append(QuotaRow(entity=entity, quota="request_percentage", value=limit))
    return image_of(*rows)


CONFIG_NAMES = {
    TOPIC: st.sampled_from(["retention.ms", "segment.ms"]),
    BROKER: st.sampled_from(["listener.name.x.y", "z", "any-name"]),
    GROUP: st.just("consumer.session.timeout.ms"),
    CLIENT_METRICS: st.just("interval.ms"),
}
LABELS = TEXTS.filter(bool)
ENTITIES = st.one_of(
    LABELS.map(lambda one: (("user", one),)),
    LABELS.map(lambda one: (("client-id", one), ("user", None))),
    st.sampled_from([(("client-id", None),), (("client-id", "default"),)]),
)


@st.composite
def acls(draw: st.DrawFn) -> AclRow:
    kind = draw(st.sampled_from([2, 3, 4, 5, 6, 7]))
    return AclRow(
        acl_id=uuid(draw(st.integers(0, 10**6))),
        resource_type=kind,
        resource_name="kafka-cluster" if kind == 4 else draw(LABELS),
        pattern_type=3 if kind == 4 else draw(st.sampled_from([3, 4])),
        principal=f"User:{draw(LABELS)}",
        host=draw(st.one_of(st.just("*"), LABELS.map(lambda one: one.replace("/", "-")))),
        operation=draw(st.sampled_from(sorted(ACL_OPERATIONS))),
        permission=draw(st.sampled_from([2, 3])),
    )


# --- commands -------------------------------------------------------------------------------------


class Tools:
    """State that commands lead to, as Kafka's tools read their arguments."""

    def __init__(self, exported: Exported) -> None:
        self.topics: dict[str, list[tuple[int, ...]]] = {}
        self.configs: dict[tuple[tuple[str, str | None], ...], dict[str, str]] = defaultdict(dict)
        self.acls: set[tuple[str, ...]] = set()
        for line in exported.lines[3:]:
            assert line.isprintable(), "no line is altered when it is printed"
            words = shlex.split(line)
            text = None
            if words[0] == "printf":
                assert words[1] == "%s\\n"
                at = words.index("|")
                text, words = "\n".join(words[2:at]), words[at + 1 :]
            assert words[1] == "$@"
            options = list(self._options(words[2:]))
            getattr(self, words[0].removesuffix(".sh").replace("-", "_"))(options, text)

    @staticmethod
    def _options(words: list[str]) -> Any:
        flags = {"--create", "--alter", "--add", "--entity-default", "--cluster", "--execute"}
        rest = iter(words)
        for word in rest:
            assert word.startswith("--"), words
            yield word, None if word in flags else next(rest)

    def kafka_topics(self, options: list[tuple[str, str]], text: None) -> None:
        given = dict(options)
        assert given.keys() == {"--create", "--topic", "--replica-assignment"}
        self.topics[given["--topic"]] = [
            tuple(map(int, one.split(":"))) for one in given["--replica-assignment"].split(",")
        ]

    def kafka_configs(self, options: list[tuple[str, str | None]], text: str | None) -> None:
        entity: list[tuple[str, str | None]] = []
        for name, value in options:
            if name == "--entity-type":
                kind = value or ""
            elif name in ("--entity-name", "--entity-default"):
                entity.append((kind, value))
            elif name == "--add-config":
                self.configs[tuple(entity)].update(added(value or ""))
            elif name == "--add-config-file":
                assert value == "/dev/stdin"
                self.configs[tuple(entity)].update(properties(text or ""))
            else:
                assert name == "--alter"

    def kafka_acls(self, options: list[tuple[str, str | None]], text: None) -> None:
        assert options[0] == ("--add", None)
        (permission, principal), *more = options[1:]
        given = {name: value for name, value in more if name != "--operation"}
        host = given.pop(f"{permission.removesuffix('-principal')}-host", "*")
        pattern = given.pop("--resource-pattern-type", "literal")
        ((kind, resource),) = given.items()
        for name, operation in more:
            if name == "--operation":
                self.acls.add(
                    tuple(
                        map(str, (permission, principal, host, kind, resource, pattern, operation))
                    )
                )


OUTSIDE_BRACKETS = r"(?=[^\]]*(?:\[|$))"


def added(text: str) -> dict[str, str]:
    """Split as ``ConfigCommand.parseConfigsToBeAdded`` of Kafka does."""
    pairs = [
        re.split(rf"\s*=\s*{OUTSIDE_BRACKETS}", pair)
        for pair in re.split(f",{OUTSIDE_BRACKETS}", text)
    ]
    return {name.strip(): re.sub(r"\[?\]?", "", value).strip() for name, value in pairs}


def properties(text: str) -> dict[str, str]:
    """Read a file of Java's properties: ASCII with escapes of UTF-16 units."""
    found = {}
    for line in text.split("\n"):
        name, _, value = line.partition("=")
        units = re.sub(
            r"\\u([0-9a-f]{4})|([!-~])", lambda one: one[1] or f"{ord(one[2]):04x}", value
        )
        found[name] = bytes.fromhex(units).decode("utf-16-be", "surrogatepass")
    return found


def configs_of(image: MetadataImage) -> dict[tuple[tuple[str, str | None], ...], dict[str, str]]:
    kinds = {TOPIC: "topics", BROKER: "brokers", GROUP: "groups", CLIENT_METRICS: "client-metrics"}
    found: dict[tuple[tuple[str, str | None], ...], dict[str, str]] = defaultdict(dict)
    for row in image.rows_of(ConfigRow):
        entity = ((kinds[row.resource_type], row.resource_name or None),)
        found[entity][row.name] = row.value
    types = {"user": "users", "client-id": "clients"}
    for quota in image.rows_of(QuotaRow):
        pairs = sorted(((types[kind], name) for kind, name in quota.entity), reverse=True)
        found[tuple(pairs)][quota.quota] = number_text(quota.value)
    return found


def is_quotable(*texts: str | None) -> bool:
    """Return whether a line of a script can have texts without escapes."""
    return all(text is None or text.isprintable() for text in texts)


@SETTINGS
@given(images())
def test_commands_are_read_as_the_state(image: MetadataImage) -> None:
    assert_commands_are(image)


def assert_commands_are(image: MetadataImage) -> None:
    exported = export(EMPTY, image, "commands")
    tools = Tools(exported)
    partitions = defaultdict(list)
    for row in image.rows_of(PartitionRow):
        partitions[row.topic_name].append(row.replicas)
    assert tools.topics == partitions
    expected = {
        entity: values
        for entity, values in configs_of(image).items()
        if is_quotable(*(name for _, name in entity))
    }
    assert tools.configs == expected
    options = {2: "--topic", 3: "--group", 4: "--cluster", 5: "--transactional-id"}
    options |= {6: "--delegation-token", 7: "--user-principal"}
    assert tools.acls == {
        (
            {2: "--deny-principal", 3: "--allow-principal"}[acl.permission],
            acl.principal,
            acl.host,
            options[acl.resource_type],
            "None" if acl.resource_type == 4 else acl.resource_name,
            {3: "literal", 4: "prefixed"}[acl.pattern_type],
            operation_name(acl.operation),
        )
        for acl in image.rows_of(AclRow)
        if is_quotable(acl.principal, acl.host, acl.resource_name)
    }
    left_out = sum("not printable" in one for one in exported.left_out)
    assert (left_out > 0) == (
        len(expected) < len(configs_of(image))
        or any(
            not is_quotable(acl.principal, acl.host, acl.resource_name)
            for acl in image.rows_of(AclRow)
        )
    )


def group_acl(group: str, *, host: str) -> AclRow:
    return AclRow(
        acl_id=uuid(1),
        resource_type=3,
        resource_name=group,
        pattern_type=3,
        principal="User:a",
        host=host,
        operation=3,
        permission=3,
    )


def test_a_name_that_is_an_operator_of_the_shell_is_an_argument(tmp_path: Path) -> None:
    acl = group_acl("|", host='"$@"')
    tool = tmp_path / "kafka-acls.sh"
    tool.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    tool.chmod(0o700)
    script = tmp_path / "script"
    script.write_text("\n".join(export(EMPTY, image_of(acl), "commands").lines))
    found = subprocess.run(
        ["/bin/sh", script, "--connection", "x"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.splitlines() == [
        *("--connection", "x", "--add", "--allow-principal", "User:a", "--allow-host", '"$@"'),
        *("--group", "|", "--operation", "Read"),
    ]


def test_a_range_of_addresses_that_the_metadata_version_forbids_is_left_out() -> None:
    acl = group_acl("g", host="10.0.0.0/8")
    exported = export(EMPTY, image_of(acl), "commands")
    assert not any("10.0.0.0" in line for line in exported.lines)
    (left_out,) = exported.left_out
    assert "a range of addresses requires metadata.version 32 or higher, not 30" in left_out


def test_a_list_is_one_value_of_a_config() -> None:
    before = topic(1, "a", (1,))
    config = ConfigRow(
        resource_type=TOPIC, resource_name="a", name="cleanup.policy", value="compact,delete"
    )
    (command,) = export(image_of(*before), image_of(*before, config), "commands").lines[3:]
    assert command.endswith(" --add-config 'cleanup.policy=[compact,delete]'")


def test_a_name_is_no_regular_expression_where_kafka_reads_one() -> None:
    exported = export(image_of(*topic(1, "a.b", (1,))), image_of(), "commands")
    assert exported.lines[3:] == (r"""kafka-topics.sh "$@" --delete --topic 'a\.b'""",)


def test_changes_of_topics_partitions_and_features_are_commands() -> None:
    before = image_of(*topic(1, "a.b", (1,), (2,)), *topic(2, "c", (1,)))
    after = image_of(*topic(3, "a.b", (1,), (2, 1), (1,)), *topic(4, "d", (1, 2), (2, 1)))
    assert export(before, after, "commands").lines[3:] == (
        """kafka-topics.sh "$@" --delete --topic c""",
        r"""kafka-topics.sh "$@" --alter --topic 'a\.b' --partitions 3 """
        "--replica-assignment 1,2,1",
        """kafka-topics.sh "$@" --create --topic d --replica-assignment 1:2,2:1""",
        """printf '%s\\n' '{"version":1,"partitions":"""
        """[{"topic":"a.b","partition":1,"replicas":[2,1]}]}' | """
        """kafka-reassign-partitions.sh "$@" --reassignment-json-file /dev/stdin --execute""",
    )


def test_replicas_on_unregistered_brokers_are_assigned_by_kafka() -> None:
    exported = export(EMPTY, image_of(*topic(1, "a", (1, 7), (7, 1))), "commands")
    assert exported.lines[3:] == (
        """kafka-topics.sh "$@" --create --topic a --partitions 2 --replication-factor 2""",
    )
    assert exported.left_out == (
        "the assignment of replicas of topic 'a': it has unregistered brokers (7)",
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_topic_without_partitions_is_left_out(form: str) -> None:
    """A log of one's own may have one: Kafka's controllers write both in one batch."""
    config = ConfigRow(resource_type=TOPIC, resource_name="bare", name="retention.ms", value="1")
    for before, after in (
        (EMPTY, image_of(*topic(1, "bare"), config)),
        (image_of(*topic(1, "bare"), *topic(2, "a", (1,))), image_of(*topic(1, "bare"), config)),
        (image_of(*topic(1, "bare", (1,), (2,))), image_of(*topic(1, "bare"), config)),
    ):
        assert "topic 'bare': it has no partitions" in export(before, after, form).left_out


@pytest.mark.parametrize("form", FORMS)
def test_a_topic_that_has_its_first_partitions_is_created_again(form: str) -> None:
    after = image_of(*topic(1, "bare", (1, 2), (2, 1)))
    text = "\n".join(export(image_of(*topic(1, "bare")), after, form).lines)
    assert "bare" in text
    if form == "commands":
        assert re.findall("--delete|--create", text) == ["--delete", "--create"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_quota_that_is_no_finite_number_is_left_out(value: float, form: str) -> None:
    """A log of one's own may have it. In YAML and HCL it would be a text."""
    entity = (("user", "ana"),)
    before = image_of(QuotaRow(entity=entity, quota="controller_mutation_rate", value=value))
    quotas = [*before.rows_of(QuotaRow)]
    quotas.append(QuotaRow(entity=entity, quota="producer_byte_rate", value=10.0))
    exported = export(before, image_of(*quotas), form)
    text = "\n".join(exported.lines)
    assert re.search("producer_?byte_?rate", text, re.IGNORECASE)
    assert re.search("controller_?mutation_?rate|inf|nan", text, re.IGNORECASE) is None
    if form != "commands":  # they have only what differs
        found = [one for one in exported.left_out if "controller_mutation_rate of user" in one]
        assert found == ["quota controller_mutation_rate of user 'ana': it is no finite number"]


@pytest.mark.parametrize("form", ["strimzi", "terraform"])
def test_a_resource_has_one_number_of_replicas(form: str) -> None:
    exported = export(EMPTY, image_of(*topic(1, "a", (1,), (1, 2))), form)
    assert exported.left_out == (
        "the numbers of replicas of topic 'a': they differ, and a resource has one number",
    )


@pytest.mark.parametrize(("form", "verb"), [("strimzi", "delete"), ("terraform", "remove")])
def test_what_is_deleted_is_reported(form: str, verb: str) -> None:
    """Resources declare what is there."""
    credential = ScramRow(
        user="ana", mechanism=2, iterations=4096, salt=b"", stored_key=b"", server_key=b""
    )
    quota = QuotaRow(entity=(("user", "ana"),), quota="producer_byte_rate", value=10.0)
    exported = export(image_of(*topic(1, "a", (1,)), credential, quota), image_of(), form)
    assert not any("resource" in line or "kind" in line for line in exported.lines)
    assert set(exported.left_out) == {
        f"topic 'a': deleted; {verb} its resource",
        f"SCRAM credential SCRAM-SHA-512 of user 'ana': deleted; {verb} its resource",
        "user 'ana': there is nothing to declare; delete its resource"
        if form == "strimzi"
        else "the quotas of user 'ana': deleted; remove its resource",
    }


# --- Strimzi --------------------------------------------------------------------------------------


@given(TEXTS)
def test_a_text_is_that_text_in_yaml(text: str) -> None:
    assume(text.isprintable() or text.encode("utf-8", "ignore").decode() == text)
    assert yaml.safe_load(yaml_text(text)) == text


@pytest.mark.slow
@SETTINGS
@given(images())
def test_resources_of_strimzi_are_read_as_the_state(image: MetadataImage) -> None:
    assert_resources_of_strimzi_are(image)


def assert_resources_of_strimzi_are(image: MetadataImage) -> None:
    exported = export(EMPTY, image, "strimzi", cluster="it's: #1")
    documents = list(yaml.safe_load_all("\n".join(exported.lines)))
    names = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", name) for _, name in names)
    assert all(one["metadata"]["labels"] == {"strimzi.io/cluster": "it's: #1"} for one in documents)
    topics = {}
    for one in documents:
        if one["kind"] == "KafkaTopic":
            spec = one["spec"]
            name = spec.get("topicName", one["metadata"]["name"])
            topics[name] = spec["partitions"], spec["replicas"], spec.get("config", {})
    assert topics == {
        row.name: (
            sum(part.topic_id == row.topic_id for part in image.rows_of(PartitionRow)),
            1,
            configs_of(image)[(("topics", row.name),)],
        )
        for row in image.rows_of(TopicRow)
    }


def test_a_user_has_its_acls_quotas_and_kind_of_credential() -> None:
    def acl(number: int, operation: int, kind: int = 2, name: str = "t", host: str = "*") -> AclRow:
        return AclRow(
            acl_id=uuid(number),
            resource_type=kind,
            resource_name=name,
            pattern_type=4 if kind == 2 else 3,
            principal="User:ana",
            host=host,
            operation=operation,
            permission=3 if host == "*" else 2,
        )

    image = image_of(
        acl(1, 3),
        acl(2, 8),
        acl(3, 12, 4, "kafka-cluster"),
        acl(4, 3, host="10.0.0.1"),
        acl(5, 13, 7, "User:bo"),
        QuotaRow(entity=(("user", "ana"),), quota="producer_byte_rate", value=10.0),
        QuotaRow(entity=(("user", "ana"),), quota="request_percentage", value=12.5),
        QuotaRow(entity=(("ip", None),), quota="connection_creation_rate", value=10.0),
        ScramRow(
            user="ana", mechanism=2, iterations=4096, salt=b"", stored_key=b"", server_key=b""
        ),
    )
    exported = export(EMPTY, image, "strimzi")
    (user,) = yaml.safe_load_all("\n".join(exported.lines))
    topic_t = {"type": "topic", "name": "t", "patternType": "prefix"}
    assert user["spec"] == {
        "authentication": {"type": "scram-sha-512"},
        "authorization": {
            "type": "simple",
            "acls": [
                {"resource": topic_t, "operations": ["Read", "Describe"]},
                {"resource": {"type": "cluster"}, "operations": ["IdempotentWrite"]},
                {"type": "deny", "resource": topic_t, "operations": ["Read"], "host": "10.0.0.1"},
            ],
        },
        "quotas": {"producerByteRate": 10},
    }
    left_out = "\n".join(exported.left_out)
    for what in ("CREATE_TOKENS of USER", "request_percentage", "the default ip", "password"):
        assert what in left_out


def test_mappings_within_lists_are_read_as_they_are() -> None:
    value: Any = {"a": [{"b": [1, "x"], "c": {"yes": "no", "on": 2.5}}, {"d": "e"}], "f": "- g"}
    assert yaml.safe_load("\n".join(yaml_lines(value))) == value


# --- Terraform ------------------------------------------------------------------------------------


def hcl_value(text: str) -> str:
    """Read a quoted template of HCL that has no interpolation (HCL's native syntax, 2.3)."""
    assert text[0] == text[-1] == '"'
    found, at, end = [], 1, len(text) - 1
    while at < end:
        if text[at] == "\\":
            kind = text[at + 1]
            digits = {"u": 4, "U": 8}.get(kind, 0)
            code = text[at + 2 : at + 2 + digits]
            found.append(chr(int(code, 16)) if digits else {"n": "\n", "t": "\t"}.get(kind, kind))
            assert digits == len(code)
            at += 2 + digits
            continue
        assert text[at] not in '"\n', "the text ends here"
        assert text[at : at + 2] not in ("${", "%{"), "a template begins here"
        found.append(text[at])
        at += 1
    return "".join(found)


@given(TEXTS)
def test_a_text_is_that_text_in_hcl(text: str) -> None:
    assert hcl_value(hcl_text(text)) == text


@pytest.mark.slow
@pytest.mark.skipif(TERRAFORM is None, reason="terraform is not installed")
def test_terraform_reads_each_text_as_it_is(tmp_path: Path) -> None:
    assert TERRAFORM is not None
    texts = ["$", "%", "$$", "$${", "%%{", "$$${a}", "%%%{b}", "${", "\\${", "\\", '"', "a\nb", "é"]
    texts += ["😀", "\x01", "\x7f", "\u2028", "\t", "${path.module}", "$\\u0024{", "#", "//", "*/"]
    outputs = (
        f'output "o{at}" {{\n  value = {hcl_text(text)}\n}}' for at, text in enumerate(texts)
    )
    (tmp_path / "main.tf").write_text("\n".join(outputs))
    for words in (("init",), ("apply", "-auto-approve")):
        subprocess.run([TERRAFORM, *words], cwd=tmp_path, check=True, capture_output=True)
    done = subprocess.run(
        [TERRAFORM, "output", "-json"], cwd=tmp_path, check=True, capture_output=True
    )
    found = json.loads(done.stdout)
    assert [found[f"o{at}"]["value"] for at in range(len(texts))] == texts


ATTRIBUTE = re.compile(r"\s*(\S+|\"(?:[^\"\\]|\\.)*\") += (.*)")


def hcl_blocks(lines: tuple[str, ...]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return kind, label and attributes of each resource."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    for line in lines:
        head = re.fullmatch(r'resource "(\w+)" "([\w-]+)" \{', line)
        if head is not None:
            found.append((head[1], head[2], {}))
            within = found[-1][2]
        elif found and line == "  }":
            within = found[-1][2]
        elif found and (attribute := ATTRIBUTE.fullmatch(line)) is not None:
            name = attribute[1] if attribute[1][0] != '"' else hcl_value(attribute[1])
            if attribute[2] == "{":
                within = found[-1][2][name] = {}
            else:
                value = attribute[2]
                within[name] = hcl_value(value) if value[0] == '"' else value
    return found


@pytest.mark.slow
@SETTINGS
@given(images())
def test_resources_of_terraform_are_read_as_the_state(image: MetadataImage) -> None:
    assert_resources_of_terraform_are(image)


def assert_resources_of_terraform_are(image: MetadataImage) -> None:
    blocks = hcl_blocks(export(EMPTY, image, "terraform").lines)
    labels = [(kind, label) for kind, label, _ in blocks]
    assert len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", label) for _, label in labels)
    of_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for kind, _, body in blocks:
        of_kind[kind].append(body)
    assert {body["name"]: body.get("config", {}) for body in of_kind["kafka_topic"]} == {
        row.name: configs_of(image)[(("topics", row.name),)] for row in image.rows_of(TopicRow)
    }
    names = ("acl_principal", "acl_host", "resource_name", "resource_type", "acl_operation")
    assert {tuple(body[name] for name in names) for body in of_kind["kafka_acl"]} == {
        (
            *(acl.principal, acl.host, acl.resource_name),
            {2: "Topic", 3: "Group", 4: "Cluster", 5: "TransactionalID"}[acl.resource_type],
            operation_name(acl.operation),
        )
        for acl in image.rows_of(AclRow)
        if acl.resource_type <= 5 and acl.operation <= 12
    }
    entities = {(body["entity_type"], body.get("entity_name")) for body in of_kind["kafka_quota"]}
    assert entities == {row.entity[0] for row in image.rows_of(QuotaRow) if len(row.entity) == 1}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "assert_exported",
    [assert_commands_are, assert_resources_of_strimzi_are, assert_resources_of_terraform_are],
)
@settings(SETTINGS, max_examples=1_000)
@given(image=images())
def test_exports_of_many_states_are_read_as_these(
    assert_exported: Callable[[MetadataImage], None], image: MetadataImage
) -> None:
    assert_exported(image)


# --- the command line -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_a_real_state_is_exported_without_secrets(form: str) -> None:
    status, out, err = run("state", NODE, "--as", form)
    assert status == 0, err
    assert "orders-0" in out
    assert "redacted" not in out
    reason = "it requires --reveal" if form == "commands" else "the form has configs of topics only"
    assert f"config listener.name.extra.ssl.key.password of broker '1': {reason}" in err
    assert "SCRAM credential SCRAM-SHA-512 of user 'orders-u1': set its password" in err
    again = run("diff", NODE, NODE, "--as", form)[1]
    assert "orders" not in again


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("state", NODE, "topics", "--as", "commands"), "cannot be used with KIND"),
        (("state", NODE, "--strimzi-cluster", "x"), "requires --as strimzi"),
        (("state", NODE, "consumer_offsets", "--as", "commands"), "--as is for the metadata"),
        (("diff", NODE, "--from", "1", "--as", "strimzi", "--changes"), "mutually exclusive"),
        (("diff", NODE, NODE, "--as", "strimzi", "--ignore", "ids"), "--ignore is for"),
        (("diff", NODE, NODE, "--as", "yaml"), "invalid choice: 'yaml'"),
    ],
)
def test_wrong_combinations_are_refused(argv: tuple[str | Path, ...], hint: str) -> None:
    status, out, err = run(*argv)
    assert (status, out) == (2, "")
    assert hint in err
