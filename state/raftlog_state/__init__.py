"""What the records of a KRaft metadata log mean: typed records, the fold, tables, a command line."""
