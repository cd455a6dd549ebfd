"""The commands of docs/operations.md, run with all hosts on this machine.

Host N has the address 127.0.0.N and folders for /etc and /var; a function replaces systemctl.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.quorum_processes import free_ports

from raftlog.node.config import parse_config
from raftlog_state.cli.main import parser

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
PRELUDE = """
set -euo pipefail
cd "$root"
trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT
systemctl() {
  case "$1" in
    enable|start)
      command raftlog node start --config "$root/host-$n/etc/node.toml" 2>> "$root/host-$n/lines" &
      echo $! > "$root/host-$n/pid" ;;
    stop) kill "$(cat "$root/host-$n/pid")"; wait "$(cat "$root/host-$n/pid")" ;;
    restart) systemctl stop; systemctl start ;;
    reload) kill -HUP "$(cat "$root/host-$n/pid")" ;;
  esac
}
raftlog() {  # a doctor that sees the quorum begin is asked again
  if [ "$1" != doctor ]; then command raftlog "$@"; return; fi
  for _ in $(seq 30); do if command raftlog "$@"; then return; fi; done
  return 1
}
sleep() { command sleep 0.05; }
host() {
  n=$1
  mkdir -p "host-$n/etc" "host-$n/var"
  if ! [ -e "host-$n/etc/voters-ca.pem" ]; then
    cp voters-ca.pem clients-ca.pem "voters-$n".* "clients-$n".* "host-$n/etc"
  fi
}
"""
END = """
n=1 && host 1
until grep -q '"reason": "reloaded"' host-1/lines; do sleep 1; done
raftlog quorum --bootstrap-server "$nodes" --config operator.properties --json > quorum.json
command raftlog doctor host-1/var/data > /dev/null || true
"""


def local(text: str, clients_port: int, voters_port: int, metrics_port: int) -> str:
    """Return commands with addresses and folders of this machine."""
    ports = {"9192": clients_port, "9193": voters_port, "9194": metrics_port}
    text = text.replace("DNS:log-$n.example", "IP:127.0.0.$n")
    text = text.replace("127.0.0.1:", "127.0.0.$n:").replace("0.0.0.0:", "127.0.0.$n:")
    text = re.sub(r"log-(\$n|\d)\.example:", r"127.0.0.\1:", text)
    text = re.sub(r":(919[234])\b", lambda found: f":{ports[found[1]]}", text)
    text = text.replace("/etc/raftlog", "$root/host-$n/etc")
    return text.replace("/var/lib/raftlog", "$root/host-$n/var")


def script(ports: list[int]) -> str:
    blocks = re.findall(
        r"^```sh\n# on ([^\n]+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) == len(re.findall("^```sh$", PAGE.read_text(), re.MULTILINE)) > 10
    parts = [PRELUDE]
    for where, block in blocks:
        hosts = {"one machine": "", "each host": "1 2 3", "log-4.example": "4"}[where]
        commands = local(block, *ports)
        if hosts:
            commands = f"for host in {hosts}; do host $host\n{commands}done\n"
            if "node.toml <<END" in block:  # a fourth host is configured in the same way
                commands = commands.replace("1 2 3", "1 2 3 4")
        parts.append(commands)
    return "\n".join([*parts, END])


def test_raftlog_accepts_the_commands_and_the_configuration_of_the_page() -> None:
    text = PAGE.read_text().replace("\\\n", " ")
    text = re.sub(r"\$\([^()]+\)|\$\w+", "1", text.replace("$(raftlog node random-uuid)", "1"))
    blocks = re.findall(r"^```(?:sh|text)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    commands = re.findall(r"^ *(?:echo .* \| )?raftlog ([^>\n]+)", "".join(blocks), re.MULTILINE)
    assert len(commands) > 10
    for command in commands:
        assert callable(parser().parse(shlex.split(command)).run)
    (toml,) = re.findall(r"node\.toml <<END\n(.*?)^END$", text, re.MULTILINE | re.DOTALL)
    config = parse_config(toml, "/etc/raftlog/node.toml")
    assert [one.port for one in config.listeners] == [9192, 9193]
    assert config.access.name_of(1) == "log-1.example"


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_commands_of_the_page_install_upgrade_and_replace_nodes(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script(free_ports(3))],
        env={**os.environ, "PATH": path, "root": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    lines = {one.parent.name: one.read_text()[-1_000:] for one in tmp_path.glob("host-*/lines")}
    assert done.returncode == 0, f"{done.stdout[-3_000:]}\n{done.stderr[-3_000:]}\n{lines}"
    found = json.loads((tmp_path / "quorum.json").read_text())
    voters = {replica["nodeId"] for replica in found["replicas"] if replica["isVoter"]}
    assert voters == {1, 2, 4}, found
    properties = tmp_path / "host-2" / "var" / "data" / "raftlog-0" / "raftlog.properties"
    assert "604800000" in properties.read_text()
