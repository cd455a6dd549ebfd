"""Cases of Kafka's own controller tests that are scenarios here, and differences that are kept.

``kafka-4.3.1-cases.txt`` has the names of the cases in Kafka 4.3.1: classes and methods of its test
jar. A test of this directory names the cases that it re-expresses, in its docstring or its id.

Differences from Kafka 4.3.1 that are kept:

- A broker's epoch is the offset of its own registration record. Kafka takes the offset of the first
  record of the operation, which may be a PartitionChangeRecord.
- The failure taxonomy and its messages are those of July 2023: a rejected execution fails over, an
  unexpected end offset is an error of its own, a message does not begin with "event".
- More than 10,000 ACLs to remove are a policy violation, as with all operations; Kafka answers
  INVALID_REQUEST.
- Records of an open transaction are kept and replayed at its end, so there is nothing to revert
  upon an abort, and a failover cannot lose committed records.
- A config of an unknown name stays in the state, since a snapshot must not lose it; it does not
  block changes of other configs, as in Kafka. (testReplayFiltersInvalidConfigs)
- Configs of a topic with an invalid name are those of a topic that does not exist.
- A quota is finite; Kafka accepts NaN. The controller does not resolve the host of a quota.
- kraft.version is raised after the other updates of the request are validated; Kafka raises it
  although another one is refused.
- There are no policies and no quotas of partition mutations. (testCreateTopicsWithPolicy,
  WithMutationQuotaExceeded)
- A claim writes no bootstrap records. (testActivationMessageForEmptyLog, testActivationRecords33)
- The soft state of brokers begins with the first operation of an epoch, not with the claim.
- The last known leader of a partition is not elected after it has lost its replica. Kafka fails.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

HOME = Path(__file__).parent
NAME = re.compile(r"\b([A-Z]\w+Test)\.(test\w+)\b(?!\{|\.\.\.)")
FORMATTED = re.compile(r'id=f"([A-Z]\w+Test)\.(test\w+)?\{')
CASE = re.compile(r'\(\s*"(\w+)",')


def named_cases() -> set[str]:
    """Return the cases that the tests of this directory name."""
    found: set[str] = set()
    for path in sorted(HOME.glob("test_*.py")):
        text = path.read_text()
        found |= {".".join(one) for one in NAME.findall(text)}
        for name, prefix in FORMATTED.findall(text):
            found |= {f"{name}.{prefix}{case}" for case in CASE.findall(text)} & known_cases()
    return found


def known_cases() -> set[str]:
    return set((HOME / "kafka-4.3.1-cases.txt").read_text().split())


def test_every_named_case_is_one_of_kafkas() -> None:
    assert named_cases() - known_cases() == set()


def test_most_cases_of_kafkas_managers_are_scenarios() -> None:
    counts = Counter(one.partition(".")[0] for one in named_cases())
    assert counts.total() >= 240
    assert len(counts) >= 18
