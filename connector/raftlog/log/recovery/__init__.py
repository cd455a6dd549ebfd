"""Recovery of a log after a crash, and repair of a damaged one."""
