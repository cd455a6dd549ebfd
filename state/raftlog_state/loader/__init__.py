"""Loading of cluster state: records of a log or a snapshot in, images and row changes out."""
