"""Loading of cluster state: from records of a log or a snapshot to images and row changes."""
