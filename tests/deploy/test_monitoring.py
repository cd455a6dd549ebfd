"""Alert rules and dashboard: their metrics are those of a node, and alerts fire when they should.

Prometheus' promtool, where it is installed (or ``RAFTLOG_PROMTOOL`` is its path), parses all
expressions and evaluates the alerts over series of a healthy quorum and of one failure each.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from tests.deploy.test_container import last_stage
from tests.support.certificates import Authority
from tests.support.quorum_processes import QuorumProcesses, free_ports

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
ALERTS = MONITORING / "alerts.yaml"
PROMTOOL = os.environ.get("RAFTLOG_PROMTOOL") or shutil.which("promtool")
RULES: list[dict[str, Any]] = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = {
    **{rule["alert"]: rule["expr"] for rule in RULES},
    **{panel["title"]: target["expr"] for panel in PANELS for target in panel["targets"]},
}
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
NODE = """
tls = {{ certificate = "{0.certificate}", key = "{0.key}", ca = "{1}/ca.pem", crl = "{1}/crl.pem" }}
[access]
nodes = "node-{{id}}"
[log]
values = "kraft"
[controller]
enabled = true
[metrics]
address = "127.0.0.1:{2}"
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Return the port of the metrics of a node with TLS and a controller."""
    (port,) = free_ports(1)
    home = tmp_path_factory.mktemp("node")
    authority = Authority(home)
    pair = authority.sign("node-1")
    authority.revoke()
    with QuorumProcesses(home, 1, extra=NODE.format(pair, home, port)):
        yield port


@pytest.mark.slow
def test_metrics_of_dashboard_and_alerts_are_those_of_a_node(port: int) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text"}
    )
    with urllib.request.urlopen(request, timeout=20) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    exported = {
        f"{family.name}{suffix}"
        for family in families
        for suffix in SUFFIXES.get(family.type, ("",))
    }
    used = {
        name
        for expression in EXPRESSIONS.values()
        for name in re.findall(r"\braftlog_\w+", expression)
    }
    assert len(used) > 25
    assert used <= exported, f"{sorted(used - exported)} are not exported"
    ((name, _),) = re.findall(
        r"label_values\((\w+), (\w+)\)", DASHBOARD["templating"]["list"][1]["query"]["query"]
    )
    assert name in exported


@pytest.mark.slow
def test_the_health_check_of_the_image_succeeds_while_a_node_runs(port: int) -> None:
    command = last_stage()["HEALTHCHECK"].partition("CMD ")[2]
    for at, status in ((port, 0), (free_ports(1)[0], 1)):
        words = json.loads(command.replace("9194", str(at)))
        done = subprocess.run(words, capture_output=True, check=False)
        assert done.returncode == status, shlex.join(words)


def test_each_alert_has_a_severity_a_summary_and_a_runbook() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) > 15
    for rule in RULES:
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"].keys() == {"summary", "runbook"}
        assert len(rule["annotations"]["runbook"].split()) > 6
        assert rule["annotations"]["runbook"].endswith(".")
        for page in re.findall(r"docs/[\w-]+\.md", rule["annotations"]["runbook"]):
            assert (MONITORING.parents[1] / page).is_file()


def test_panels_of_the_dashboard_have_a_place_a_description_and_the_chosen_source() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in PANELS:
        assert panel["description"].endswith(".")
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'quorum="$quorum"' in target["expr"]
    cells = [
        (x, y)
        for one in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(one["x"], one["x"] + one["w"])
        for y in range(one["y"], one["y"] + one["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"


# --- as Prometheus evaluates them -----------------------------------------------------------------

MINUTES = 130
"""Longer than every `for`."""
INSTANCES = ("a", "b", "c")
BUCKETS = ("0.005", "0.5", "1.0", "5.0", "+Inf")


def healthy() -> dict[str, str]:
    """Return the series of a quorum of three with a controller, led by node a."""
    series: dict[str, str] = {}
    for one in INSTANCES:
        labels = f'quorum="q", job="raftlog", instance="{one}"'
        constant = {"leader_id": 1, "voters": 3, "ready": 1, "appends_waiting": int(one == "a")}
        for name in ("stalled_on_disk_full", "withdrawn", "damaged_voters", "snapshots_disabled"):
            constant[name] = 0
        constant["tombstones_retained"] = 0
        for name in ("elections", "audit_lines_lost", "controller_faults", "remote_errors"):
            constant[f"{name}_total"] = int(one == "a")
        for name, number in constant.items():
            series[f"raftlog_{name}{{{labels}}}"] = f"{number}x{MINUTES}"
        series[f"up{{{labels}}}"] = f"1x{MINUTES}"
        for name in ("log_end_offset", "high_watermark"):
            series[f"raftlog_{name}{{{labels}}}"] = f"0+1000x{MINUTES}"
        days_left = (
            f'raftlog_certificate_days_left{{{labels}, listener="voters", kind="ca", number="1"}}'
        )
        series[days_left] = f"300x{MINUTES}"
        list_days_left = f'raftlog_revocation_list_days_left{{{labels}, listener="voters"}}'
        series[list_days_left] = f"7x{MINUTES}"
        series[f'raftlog_role{{{labels}, role="leader"}}'] = f"{int(one == 'a')}x{MINUTES}"
        series[f'raftlog_waiting_for_memory{{{labels}, budget="clients"}}'] = f"0x{MINUTES}"
        series[f'raftlog_connections_refused_total{{{labels}, limit="rate"}}'] = f"7x{MINUTES}"
        for bound in BUCKETS:
            for name in ("sync_seconds", "append_seconds"):
                series[f'raftlog_{name}_bucket{{{labels}, le="{bound}"}}'] = "0+30x130"
    labels = 'quorum="q", job="raftlog", instance="a", replica="2"'
    series[f"raftlog_replica_end_offset{{{labels}}}"] = f"0+1000x{MINUTES}"
    return series


def changed(name: str, values: str, *labels: str) -> dict[str, str]:
    """Return the healthy series of a name, and with these labels, with other values."""
    found = {
        key: values
        for key in healthy()
        if key.startswith(f"{name}{{") and all(label in key for label in labels)
    }
    assert found, name
    return found


ON_A = 'instance="a"'
FAILURES = {
    "RaftlogNodeDown": changed("up", "1x9 0x120", 'instance="c"'),
    "RaftlogMajorityDown": {
        **changed("up", "1x9 0x120", 'instance="c"'),
        **changed("up", "1x9 0x120", 'instance="b"'),
    },
    "RaftlogNoLeader": changed("raftlog_leader_id", "1x9 -1x120"),
    "RaftlogElections": changed("raftlog_elections_total", "0+1x130", ON_A),
    "RaftlogNotReady": changed("raftlog_ready", "1x9 0x120", ON_A),
    "RaftlogDiskFull": changed("raftlog_stalled_on_disk_full", "0x9 1x120", ON_A),
    "RaftlogWithdrawn": changed("raftlog_withdrawn", "0x9 1x120", ON_A),
    "RaftlogDamagedVoters": changed("raftlog_damaged_voters", "0x9 1x120", ON_A),
    "RaftlogVoterLags": changed("raftlog_replica_end_offset", "0+1000x9 9000x120"),
    "RaftlogCommitStalled": changed("raftlog_high_watermark", "0+1000x9 9000x120", ON_A),
    "RaftlogSyncsSlow": {
        **changed("raftlog_sync_seconds_bucket", "0+20x130", ON_A, 'le="0.5"'),
        **changed("raftlog_sync_seconds_bucket", "0+20x130", ON_A, 'le="0.005"'),
    },
    "RaftlogAppendsSlow": {
        **changed("raftlog_append_seconds_bucket", "0+20x130", ON_A, 'le="0.005"'),
        **changed("raftlog_append_seconds_bucket", "0+20x130", ON_A, 'le="0.5"'),
        **changed("raftlog_append_seconds_bucket", "0+20x130", ON_A, 'le="1.0"'),
    },
    "RaftlogConnectionsRefused": changed("raftlog_connections_refused_total", "7+1x130", ON_A),
    "RaftlogMemoryExhausted": changed("raftlog_waiting_for_memory", "0x9 3x120", ON_A),
    "RaftlogAuditLinesLost": changed("raftlog_audit_lines_lost_total", "0+1x130", ON_A),
    "RaftlogCertificateExpires": changed("raftlog_certificate_days_left", "31x9 29x120", ON_A),
    "RaftlogCertificateExpired": changed("raftlog_certificate_days_left", "31x9 0x120", ON_A),
    "RaftlogRevocationListExpires": changed(
        "raftlog_revocation_list_days_left", "7x9 0.4x120", ON_A
    ),
    "RaftlogFewVoters": changed("raftlog_voters", "1x130"),
    "RaftlogSnapshotsDisabled": changed("raftlog_snapshots_disabled", "0x9 1x120", ON_A),
    "RaftlogTombstonesRetained": changed("raftlog_tombstones_retained", "0x9 1x120", ON_A),
    "RaftlogControllerFaults": changed("raftlog_controller_faults_total", "0+1x130", ON_A),
    "RaftlogRemoteStorageFails": changed("raftlog_remote_errors_total", "0+1x130", ON_A),
}
IMPLIED = {
    "RaftlogMajorityDown": {"RaftlogNodeDown"},
    "RaftlogCertificateExpired": {"RaftlogCertificateExpires"},
}
"""Alerts that fire together with one."""


def test_a_failure_is_described_for_each_alert() -> None:
    assert FAILURES.keys() == {rule["alert"] for rule in RULES}


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool")
def test_an_alert_fires_for_its_failure_only(tmp_path: Path) -> None:
    def case(name: str, series: dict[str, str]) -> dict[str, Any]:
        fired = sorted({name, *IMPLIED.get(name, ())} - {"a healthy quorum"})
        return {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": key, "values": series[key]} for key in series],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"}) > bool 0',
                    "eval_time": f"{MINUTES - 1}m",
                    "exp_samples": [
                        {"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in fired
                    ],
                }
            ],
        }

    cases = [case("a healthy quorum", healthy())]
    cases += [case(name, {**healthy(), **series}) for name, series in FAILURES.items()]
    file = tmp_path / "alerts_test.yaml"
    file.write_text(
        yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": cases})
    )
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool")
def test_prometheus_parses_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    targets = [target["expr"] for panel in PANELS for target in panel["targets"]]
    rules = [{"record": f"panel:{at}", "expr": one} for at, one in enumerate(targets)]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
