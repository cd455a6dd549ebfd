"""What an installation without Hypothesis has: see ``tests.support.child_processes``."""

raise ModuleNotFoundError("Hypothesis is hidden from the processes that tests start")
