"""The pool of one host: LMDB files that any number of processes share."""
