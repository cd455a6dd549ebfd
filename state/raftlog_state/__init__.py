"""What the records of a KRaft metadata log mean: records, fold, tables, command line."""
