"""What needs Mooncake's package, and no cluster: the master's HTTP port, the way to a master."""

import threading
import time
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from bounded import within, without_threads
from contracts.host_memory import MappedMemory

from ems.common.exception import PoolUnavailable

pytest.importorskip("mooncake")

from ems.pool.mooncake.admin import Admin
from ems.pool.registry import open_pool


@pytest.fixture
def answering():
    """A function that returns an Admin whose master answers everything with some bytes."""
    servers = []

    def open_here(content):
        class Answer(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_):
                pass

        server = HTTPServer(("127.0.0.1", 0), Answer)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return Admin("127.0.0.1", server.server_port)

    yield open_here
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"<html>", b"\xff\xfe", b"[]", b"7", b"{}", b'{"data": []}'),
        *(b'{"data": {"a": 7}}', b'{"data": {"a": {"ok": true}}}'),
        b'{"data": {"a": {"ok": true, "values": [{}]}}}',
    ],
)
def test_a_port_of_somebody_else_makes_the_pool_unavailable_and_is_no_fault(answering, content):
    with closing(answering(content)) as admin:
        with pytest.raises(PoolUnavailable, match="is that the master's --metrics_port"):
            admin.locate(["a"], deadline=None)
        assert admin.figures() == {}


def test_a_connection_for_which_there_is_no_thread_is_tried_again():
    with closing(open_pool("mooncake://127.0.0.1:1", MappedMemory())) as pool:
        with without_threads(), pytest.raises(PoolUnavailable, match="no thread"):
            pool.lookup(["a"])
        with pytest.raises(PoolUnavailable, match="does not accept connections"):
            within(lambda: pool.lookup(["a"], deadline=time.monotonic() + 10))
