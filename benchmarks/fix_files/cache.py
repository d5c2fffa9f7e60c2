"""A cache that forgets what was used least recently."""

from collections import OrderedDict


class Cache:
    """Holds as many entries as its capacity allows."""

    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("a cache holds one entry at least")
        self._capacity = capacity
        self._entries = OrderedDict()
        self.hits = 0
        self.misses = 0

    def get(self, key, default=None):
        """The value of a key, which is used by this."""
        if key not in self._entries:
            self.misses += 1
            return default
        self.hits += 1
        self._entries.move_to_end(key)
        return self._entries[key]

    def put(self, key, value):
        """Keep a value; the entry that was used least recently goes if there are too many."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def hit_rate(self):
        """The share of calls of `get` that found something, 0 before the first."""
        calls = self.hits + self.misses
        return self.hits / calls if calls else 0.0

    def __len__(self):
        return len(self._entries)
