"""The pool of many hosts: a Mooncake Store, reached over its network.

`mooncake://HOST:PORT?metrics=PORT` names the master: `mooncake_master --rpc_port=…
--metrics_port=…`. The memory is lent by nodes (`mooncake_client`), or by processes that use the
pool (`?segment=`), with which it goes. Worth knowing of Mooncake 0.3.13:

- Nobody is authenticated, and its clients listen on all interfaces: a network of one's own.
- The master forgets all entries when it restarts; nodes and clients find it again by themselves.
- A look-up without `?metrics=` leases what it finds for `--default_kv_lease_ttl` (10 s unless
  set); so do loads. Leased entries are not evicted. 0 is no setting: each load would fail.
- After a writer was killed, its entries cannot be stored by others for
  `--put_start_discard_timeout_sec` (30 s); entries of a node that died stay listed for
  `--client_ttl` (10 s), and are misses at once.
- MC_LOG_LEVEL (TRACE, INFO, WARNING, ERROR; here ERROR unless set) and MC_LOG_DIR decide what it
  writes; two harmless lines per process remain.
"""
