"""What a pool may hold, as a plain dict; and how much of a request it can serve."""


class Entry:
    """What may be stored under a key: pairs of tokens and bytes."""

    def __init__(self):
        self.versions = []
        self.sure_tokens = 0
        """At least so many tokens are stored, unless something was evicted since."""
        self.epoch = 0


class Store:
    """Keys with what may be stored under them.

    `keeps_all`: two tiers, of which one may have an older version than the other.
    """

    def __init__(self, *, keeps_all=False):
        self.keeps_all = keeps_all
        self._entries = {}
        self._epoch = 0

    def evict(self):
        """Note that anything may be gone."""
        self._epoch += 1

    def entry(self, key):
        entry = self._entries.setdefault(key, Entry())
        if entry.epoch != self._epoch:
            entry.epoch, entry.sure_tokens = self._epoch, 0
        return entry

    def must(self, key, tokens):
        """Whether so many tokens are surely there."""
        return self.entry(key).sure_tokens >= tokens

    def may(self, key, tokens):
        """Return the bytes that so many tokens can be."""
        return [one for one in self.entry(key).versions if one[0] >= tokens]

    def saved(self, key, tokens, data, *, surely):
        """Note that this was stored, or may have been."""
        entry = self.entry(key)
        if entry.sure_tokens >= tokens:
            return
        new = (tokens, data)
        if surely and not self.keeps_all:
            entry.versions = [one for one in entry.versions if one[0] >= tokens]
        if new not in entry.versions:
            entry.versions.append(new)
        if surely:
            entry.sure_tokens = tokens

    def seen(self, key, matching):
        """Note that one of these versions was read."""
        entry = self.entry(key)
        if not self.keeps_all:
            entry.versions = list(matching)
            entry.sure_tokens = max(entry.sure_tokens, min(one[0] for one in matching))

    def missed(self, key, tokens):
        """Note that not so many tokens are there."""
        entry = self.entry(key)
        entry.versions = [one for one in entry.versions if one[0] < tokens]


def prefix(done, windows, tokens):
    """Return the greatest number of leading hashes that every part can serve.

    `done` and `windows` are by part, `tokens` by hash; one hash after the other, as one would say
    it: the part needs what holds one of the last `window` tokens of the prefix.
    """
    ends = [0]
    for one in tokens:
        ends.append(ends[-1] + one)
    for count in range(len(tokens), 0, -1):
        if all(
            mine[at]
            for mine, window in zip(done, windows, strict=True)
            for at in range(count)
            if window is None or ends[at + 1] > ends[count] - window
        ):
            return count
    return 0
