"""Mooncake's integers in words, and as failures of ours.

The numbers are those of `ErrorCode` in mooncake-store/include/types.h, release 0.3.13:
https://github.com/kvcache-ai/Mooncake/blob/main/mooncake-store/include/types.h
"""

from ems.common.exception import PoolUnavailable

NO_ROOM = -200
BAD_ARGUMENT = -600
NOT_READY = -703
NOT_FOUND = -704
LEASED = -706
LEASE_EXPIRED = -707
TRANSFER_FAILED = -800
RPC_FAILED = -900
RPC_TIMEOUT = -901

_MEANING = {
    -1: "an internal error",
    -101: "no segment is mounted",
    NO_ROOM: "no room: all is full, leased or not mounted yet",
    BAD_ARGUMENT: "an argument or a size is wrong",
    -601: "the master does not know this client",
    NOT_READY: "it is being written",
    NOT_FOUND: "it is not there",
    -705: "it is there already",
    LEASED: "it is leased",
    LEASE_EXPIRED: "its lease ended before it was read",
    -712: "its memory is gone",
    TRANSFER_FAILED: "the transfer failed: the node that holds the memory does not answer",
    RPC_FAILED: "the master does not answer",
    RPC_TIMEOUT: "the master did not answer in time",
    -1010: "the master does not serve now",
    -1011: "the master does not serve this",
}


def meaning(code: int) -> str:
    """Return what a code says, with its number."""
    return f"{_MEANING.get(code, 'an unknown code')} ({code})"


def failure(operation: str, code: int, master: str) -> PoolUnavailable:
    """Return the failure of an operation that Mooncake refused for a reason it cannot recover."""
    return PoolUnavailable(f"mooncake at {master}: {operation}: {meaning(code)}")
