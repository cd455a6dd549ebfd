"""``raftlog node``: help text and names of the commands of a quorum's node."""

from __future__ import annotations

from typing import Final

HELP: Final = """\
usage: raftlog node COMMAND [OPTION ...]

A quorum of three or five nodes replicates one log by KRaft. Acknowledged records survive the loss
of any minority of the nodes. Clients are `raftlog.connect` and Apache Kafka's producers and
consumers.

commands:
  format       format the directory of a new node
  start        run a node until SIGTERM
  recover      let a stopped node with a damaged log or quorum-state vote again
  workload     append to a running quorum from several writers, then verify its log
  random-uuid  print a random id for a cluster or a directory

minimal node.toml:
  [node]
  id = 1
  directory = "data"
  [listeners.both]
  address = "127.0.0.1:9192"

one of three nodes on a network (TLS is required except on loopback):
  [node]
  id = 1
  directory = "/var/lib/raftlog"
  bootstrap_servers = ["10.0.0.1:9193", "10.0.0.2:9193", "10.0.0.3:9193"]
  [listeners.clients]
  address = "10.0.0.1:9192"
  tls = { certificate = "log-1.pem", key = "log-1.key", ca = "clients-ca.pem" }
  [listeners.voters]
  address = "10.0.0.1:9193"
  tls = { certificate = "log-1.pem", key = "log-1.key", ca = "voters-ca.pem" }
  [access]
  read = ["reports-*"]
  append = ["jobs-*"]
  admin = ["operator"]
  nodes = "log-{id}.example"

examples:
  raftlog node format --config node.toml --standalone
  raftlog node start --config node.toml

`raftlog node COMMAND --help` describes a command, `pydoc raftlog.node.config` all keys of
node.toml.
"""

COMMANDS: Final = ("format", "start", "recover", "workload", "random-uuid")
