"""Where files are: the protocol that the log uses, and real files."""
