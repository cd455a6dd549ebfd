"""``raftlog node``: the commands of a process that keeps one copy of a quorum's log."""

from __future__ import annotations

from typing import Final

HELP: Final = """\
usage: raftlog node COMMAND [OPTION ...]

Three or five nodes keep one log: an append that was acknowledged survives any minority of them.
Clients of Apache Kafka produce to it and consume from it; so does `raftlog.connect`.

commands:
  format       make a node's directory, once
  start        run a node until SIGTERM
  recover      have a stopped node vote again that was damaged
  workload     count on a running quorum, and check that it keeps its word
  random-uuid  print a new id, for a cluster or a directory

the smallest node.toml:
  [node]
  id = 1
  directory = "data"
  [listeners.both]
  address = "127.0.0.1:9192"

a node of three, that others can reach, needs TLS:
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

`raftlog node COMMAND --help` tells more about one, `pydoc raftlog.node.config` all of node.toml.
"""

COMMANDS: Final = ("format", "start", "recover", "workload", "random-uuid")
