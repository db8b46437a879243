"""The pool of many hosts: a Mooncake Store, reached over its network."""
