"""The Helm chart: what helm renders, as Kubernetes and raftlog read it.

``rendered.yaml`` is the output of ``helm template``, with the digest of the files that it was
rendered from. Where helm is installed (or ``RAFTLOG_HELM`` is its path) it is rendered again and
compared; ``REWRITE=1`` writes it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.certificates import Authority
from tests.support.cli import run
from tests.support.quorum_processes import NodeProcess, eventually, free_ports

from raftlog.errors import RaftlogError
from raftlog.node.config import parse_config, read_config
from raftlog.node.formatting import read_identity
from raftlog.wire import Listener

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy" / "helm" / "raftlog"
RENDERED = HERE / "rendered.yaml"
HELM = os.environ.get("RAFTLOG_HELM") or shutil.which("helm")
NAMES = {0: "raftlog-0", 1: "raftlog-1", 2: "raftlog-2"}


def digest() -> str:
    """Return the digest of everything that determines the rendered chart."""
    found = hashlib.sha256()
    files = [path for path in CHART.rglob("*") if path.is_file() and path.name != "NOTES.txt"]
    for path in (*sorted(files), HERE / "values.yaml"):
        found.update(f"{path.name} {len(path.read_bytes())}\n".encode() + path.read_bytes())
    return found.hexdigest()


def render(*options: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    name = ("raftlog", str(CHART), "--namespace", "logs", "--kube-version", "1.33")
    command = [HELM, "template", *name, "-f", str(HERE / "values.yaml")]
    return subprocess.run([*command, *options], capture_output=True, text=True, check=False)


Objects = dict[tuple[str, str], dict[str, Any]]


def objects(text: str) -> Objects:
    found = [one for one in yaml.safe_load_all(text) if one is not None]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


@pytest.fixture(scope="module")
def chart() -> Objects:
    return objects(RENDERED.read_text())


@pytest.mark.skipif(HELM is None, reason="there is no helm")
def test_helm_renders_what_is_stored() -> None:
    done = render()
    assert done.returncode == 0, done.stderr
    if os.environ.get("REWRITE"):
        RENDERED.write_text(f"# digest of the sources: {digest()}\n{done.stdout}")
    assert objects(done.stdout) == objects(RENDERED.read_text())


def test_the_stored_chart_is_rendered_from_these_sources() -> None:
    stored = RENDERED.read_text().splitlines()[0]
    assert stored == f"# digest of the sources: {digest()}", (
        "run REWRITE=1 pytest tests/deploy/test_chart.py where helm is installed"
    )


@pytest.mark.skipif(HELM is None, reason="there is no helm")
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--set", "clusterId="), "clusterId"),
        (("--set", "replicas=2"), "replicas"),
        (("--set", "tls.voters.secretName="), "secretName"),
        (("--set", "access.nodes=raftlog"), "nodes"),
        (("--set", "acess.nodes=raftlog"), "acess"),
    ],
)
def test_helm_refuses_values_that_cannot_work(options: tuple[str, ...], reason: str) -> None:
    done = render(*options)
    assert done.returncode != 0
    assert reason in done.stderr


def value_names(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> set[str]:
    """Return the paths of all values, of which each object of the chart has those of its schema."""
    assert schema["additionalProperties"] is False, path
    assert values.keys() == schema["properties"].keys() - {"global"}, path
    found = set()
    for name, value in values.items():
        inner = schema["properties"][name]
        is_of_chart = "properties" in inner  # and not of Kubernetes, such as resources
        found |= value_names(value, inner, f"{path}.{name}") if is_of_chart else {f"{path}.{name}"}
    return found


def test_values_schema_and_templates_have_the_same_names() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    names = value_names(yaml.safe_load((CHART / "values.yaml").read_text()), schema)
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    assert set(re.findall(r"\.Values((?:\.\w+)+)", templates)) == names


# --- as Kubernetes reads it -----------------------------------------------------------------------


def pod(chart: Objects) -> dict[str, Any]:
    found: dict[str, Any] = chart["StatefulSet", "raftlog"]["spec"]["template"]
    return found


def test_selectors_select_the_pods(chart: Objects) -> None:
    labels = pod(chart)["metadata"]["labels"].items()
    stateful = chart["StatefulSet", "raftlog"]["spec"]
    affinity = pod(chart)["spec"]["affinity"]["podAntiAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    for selector in (
        stateful["selector"]["matchLabels"],
        chart["Service", "raftlog"]["spec"]["selector"],
        chart["Service", "raftlog-nodes"]["spec"]["selector"],
        chart["PodDisruptionBudget", "raftlog"]["spec"]["selector"]["matchLabels"],
        term["labelSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels
    assert chart["PodDisruptionBudget", "raftlog"]["spec"]["maxUnavailable"] == 1
    headless = chart["Service", stateful["serviceName"]]
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["publishNotReadyAddresses"] is True
    assert stateful["podManagementPolicy"] == "Parallel"
    monitor = chart["ServiceMonitor", "raftlog"]["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    monitored = [
        name
        for (kind, name), one in chart.items()
        if kind == "Service" and wanted <= one["metadata"]["labels"].items()
    ]
    assert monitored == ["raftlog-nodes"], "each pod is scraped once"
    assert monitor["endpoints"][0]["port"] in {one["name"] for one in headless["spec"]["ports"]}
    added = {
        one["targetLabel"]: one.get("replacement") for one in monitor["endpoints"][0]["relabelings"]
    }
    assert added == {"job": "raftlog", "quorum": "raftlog", "instance": None}


def test_ports_volumes_and_probes_exist(chart: Objects) -> None:
    spec = pod(chart)["spec"]
    (container,), (first,) = spec["containers"], spec["initContainers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for name in ("raftlog", "raftlog-nodes"):
        for one in chart["Service", name]["spec"]["ports"]:
            assert ports[one["targetPort"]] == one["port"]
    paths = {"startupProbe": "/health", "livenessProbe": "/health", "readinessProbe": "/ready"}
    for probe, path in paths.items():
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
    (claim,) = chart["StatefulSet", "raftlog"]["spec"]["volumeClaimTemplates"]
    volumes = {one["name"]: one for one in spec["volumes"]} | {claim["metadata"]["name"]: claim}
    for one in (container, first):
        assert {mount["name"] for mount in one["volumeMounts"]} == volumes.keys()
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        assert one["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert volumes["tls-voters"]["secret"] == {"secretName": "raftlog-voters", "defaultMode": 0o440}
    assert volumes["config"]["configMap"]["name"] == "raftlog"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsGroup"]


# --- as raftlog reads it --------------------------------------------------------------------------


def files(chart: Objects) -> dict[str, str]:
    found: dict[str, str] = chart["ConfigMap", "raftlog"]["data"]
    return found


def test_each_pod_has_a_configuration_that_a_node_accepts(chart: Objects) -> None:
    assert files(chart).keys() == {f"{name}.toml" for name in NAMES.values()}
    for node_id, name in NAMES.items():
        config = parse_config(files(chart)[f"{name}.toml"], f"/etc/raftlog/{name}.toml")
        assert config.node_id == node_id
        assert config.directory == "/var/lib/raftlog/data"
        ports = {one.listener: one.port for one in config.listeners}
        assert ports == {Listener.CLIENTS: 9192, Listener.VOTERS: 9193}
        for one in config.listeners:
            assert one.tls is not None
            assert one.advertised_host == f"{name}.raftlog-nodes.logs.svc.cluster.local"
            assert one.tls.key.endswith(f"/{name}.key")
        assert config.access.name_of(node_id) == name
        assert config.metrics is not None
        assert (config.metrics.host, config.metrics.port) == ("0.0.0.0", 9194)
        assert config.quorum.fetch_timeout_ms == 3_000


def arguments(chart: Objects, kind: str, home: Path, name: str) -> list[str]:
    """Return the arguments of a container of a pod, whose files are in ``home``."""
    (container,) = pod(chart)["spec"][kind]
    words = [word.replace("$(POD_NAME)", name) for word in container["args"]]
    return [word.replace("/etc/raftlog", str(home)) for word in words]


def written(chart: Objects, home: Path, name: str) -> Path:
    """Write the file of a pod, with a directory in ``home``; return its path."""
    path = home / f"{name}.toml"
    text = files(chart)[path.name].replace("/var/lib/raftlog/data", str(home / f"data-{name}"))
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_pods_format_their_volume_once(chart: Objects, tmp_path: Path) -> None:
    directory_ids = []
    for name in NAMES.values():
        config = written(chart, tmp_path, name)
        words = arguments(chart, "initContainers", tmp_path, name)
        for _ in range(2):
            status, _, err = run(*words)
            assert status == 0, err
        directory_ids.append(read_identity(read_config(config)).directory_id)
    (voters,) = (word for word in words if word.startswith("--initial-voters="))
    assert re.findall(r":9193:([^,]+)", voters) == directory_ids


def test_a_lost_volume_is_formatted_as_an_observer_with_a_new_id(
    chart: Objects, tmp_path: Path
) -> None:
    config = written(chart, tmp_path, "raftlog-1")
    words = arguments(chart, "initContainers", tmp_path, "raftlog-1")
    (voters,) = (word for word in words if word.startswith("--initial-voters="))
    words[words.index(voters)] = "--no-initial-voters"
    template = (CHART / "templates" / "statefulset.yaml").read_text()
    assert "{{- else }}\n            - --no-initial-voters" in template, "bootstrap: false"
    assert run(*words)[0] == 0
    assert str(read_identity(read_config(config)).directory_id) not in voters


@pytest.mark.slow
def test_the_configurations_of_the_pods_are_those_of_a_quorum_with_tls(
    chart: Objects, tmp_path: Path
) -> None:
    """Addresses are replaced by loopback ones, paths of secrets by files of the same names."""
    ports = {name: free_ports(3) for name in NAMES.values()}
    where: dict[str, str] = {}
    for name, found in ports.items():
        for port, free in zip((9192, 9193, 9194), found, strict=True):
            where[f"{name}.raftlog-nodes.logs.svc.cluster.local:{port}"] = f"127.0.0.1:{free}"
    for role in ("clients", "voters"):
        authority = Authority(tmp_path / "tls" / role)
        Path(authority.path).rename(tmp_path / "tls" / role / "ca.crt")
        for name in NAMES.values():
            certificate = Path(authority.sign(name, dns=[name]).certificate)
            certificate.rename(certificate.with_suffix(".crt"))

    def local(text: str, name: str) -> str:
        for address, replacement in where.items():
            text = text.replace(address, replacement)
        for port, free in zip((9192, 9193, 9194), ports[name], strict=True):
            text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{free}")
        return text.replace("/etc/raftlog-tls", str(tmp_path / "tls"))

    nodes = []
    try:
        for node_id, name in NAMES.items():
            node = NodeProcess(tmp_path / name, node_id, ports[name][1])
            config = written(chart, tmp_path, name)
            config.write_text(local(config.read_text(), name))
            node.config.write_bytes(config.read_bytes())
            words = arguments(chart, "initContainers", tmp_path, name)
            status, _, err = run(*(local(word, name) for word in words))
            assert status == 0, err
            node.launch()
            nodes.append(node)
        for node in nodes:
            ready = f"http://127.0.0.1:{ports[NAMES[node.node_id]][2]}/ready"
            eventually(partial(is_ok, ready), f"{node.node_id} is ready", patience_s=90)
    except (AssertionError, RaftlogError) as error:
        for node in nodes:
            error.add_note(node.last_lines())
        raise
    finally:
        for node in nodes:
            node.kill()


def is_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=20) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False
