"""The master's HTTP port: what is stored where, without leases, and its figures."""

import http.client
import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from ems.common.exception import PoolUnavailable, RequestTimeout, shown
from ems.pool.mooncake.library import Located

_SECONDS = 5.0
_NAMES_PER_QUERY = 256
"""The names travel in the URL, as they are: keys hold nothing that would have to be quoted."""


class Admin:
    """Asks the master's metrics port, over connections that are kept for further questions."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._idle: list[http.client.HTTPConnection] = []

    def locate(self, names: Sequence[str], *, deadline: float | None) -> list[Located | None]:
        """Return where objects are; leases nothing."""
        found: list[Located | None] = []
        for start in range(0, len(names), _NAMES_PER_QUERY):
            some = names[start : start + _NAMES_PER_QUERY]
            text = self._get(f"/batch_query_keys?keys={','.join(some)}", deadline)
            try:
                answers = json.loads(text)["data"]
                found += [_located(answers.get(name)) for name in some]
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise PoolUnavailable(
                    f"{self._where} answer {shown(text)}; is that the master's --metrics_port?"
                ) from error
        return found

    def names(self) -> list[str]:
        """Return the names of all objects, in no particular order."""
        return self._get("/get_all_keys", None).splitlines()

    def figures(self) -> dict[str, int]:
        """Return the master's figures that have no labels."""
        found: dict[str, int] = {}
        for line in self._get("/metrics", None).splitlines():
            name, _, value = line.partition(" ")
            if name.startswith("master_") and value.isdigit():
                found[name] = int(value)
        return found

    def _get(self, path: str, deadline: float | None) -> str:
        seconds = _SECONDS if deadline is None else min(_SECONDS, deadline - time.monotonic())
        if seconds <= 0:
            raise RequestTimeout("the time-out passed before the master's metrics were asked")
        try:
            status, content = self._ask(path, seconds)
        except (OSError, http.client.HTTPException) as error:
            raise PoolUnavailable(f"{self._where} do not answer: {error}") from error
        if status != http.HTTPStatus.OK:
            raise PoolUnavailable(f"{self._where} answer {status} to {path[:80]}")
        return content

    @property
    def _where(self) -> str:
        return f"mooncake's metrics at {self._host}:{self._port}"

    def _ask(self, path: str, seconds: float) -> tuple[int, str]:
        while self._idle:
            with suppress(IndexError, OSError, http.client.HTTPException):  # it may have closed
                return self._ask_over(self._idle.pop(), path, seconds)
        connection = http.client.HTTPConnection(self._host, self._port)
        return self._ask_over(connection, path, seconds)

    def _ask_over(
        self, connection: http.client.HTTPConnection, path: str, seconds: float
    ) -> tuple[int, str]:
        connection.timeout = seconds
        if connection.sock:
            connection.sock.settimeout(seconds)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            content = response.read().decode(errors="replace")
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        return response.status, content

    def close(self) -> None:
        """Close the connections that are kept."""
        while self._idle:
            self._idle.pop().close()


def _located(answer: Any) -> Located | None:
    if not answer or not answer["ok"]:
        return None
    for one in answer["values"] or ():
        return Located(one["size_"], one["buffer_address_"], one["transport_endpoint_"])
    for one in answer["disk_values"] or answer["local_disk_values"] or ():
        return Located(one.get("object_size", one.get("size_", 0)), 0, "")
    return None
