"""Names, small files, index entries and leader epochs of a log as values, both ways."""
