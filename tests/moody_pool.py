"""A pool that fails when the test wants it to."""

from ems.common.exception import PoolUnavailable
from ems.pool.base import PoolEngine


class MoodyPool(PoolEngine):
    """A pool that raises at the nth call of a method, as an engine may: `moods={"commit": 2}`."""

    def __init__(self, inner, moods=None, *, error=PoolUnavailable, window_nbytes=None):
        self.inner = inner
        self.moods = dict(moods or {})
        self.error = error
        self.window_nbytes = window_nbytes
        self.most_reserved_nbytes = 0
        self.most_held_nbytes = 0

    def _raise_if_due(self, method):
        if method in self.moods:
            self.moods[method] -= 1
            if not self.moods[method]:
                raise self.error(f"{method} went wrong")

    def reserve(self, keys, tokens, nbytes, *, deadline):
        self._raise_if_due("reserve")
        answers = self.inner.reserve(keys, tokens, nbytes, deadline=deadline)
        reserved = self.inner.stats().reserved_nbytes
        self.most_reserved_nbytes = max(self.most_reserved_nbytes, reserved)
        return answers

    def commit(self, places):
        try:
            self._raise_if_due("commit")
        except BaseException:
            self.inner.abort(places)
            raise
        return self.inner.commit(places)

    def abort(self, places):
        self.inner.abort(places)
        self._raise_if_due("abort")

    def acquire(self, keys, tokens, *, deadline):
        self._raise_if_due("acquire")
        answers = self.inner.acquire(keys, tokens, deadline=deadline)
        self.most_held_nbytes = max(self.most_held_nbytes, self.inner.stats().held_nbytes)
        return answers

    def release(self, held):
        self.inner.release(held)
        self._raise_if_due("release")

    def lookup(self, keys, *, deadline=None):
        return self.inner.lookup(keys)

    def remove(self, keys):
        return self.inner.remove(keys)

    def clear(self):
        return self.inner.clear()

    def keys(self):
        return self.inner.keys()

    def stats(self):
        return self.inner.stats()

    def check_health(self, *, deadline):
        self.inner.check_health(deadline=deadline)

    def close(self):
        self.inner.close()
