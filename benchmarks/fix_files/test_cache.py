import unittest

from cache import Cache


class CacheTest(unittest.TestCase):
    def test_what_was_used_least_recently_goes(self):
        cache = Cache(2)
        cache.put("a", 1)
        cache.put("b", 2)
        self.assertEqual(cache.get("a"), 1)
        cache.put("c", 3)
        self.assertIsNone(cache.get("b"))
        self.assertEqual((cache.get("a"), cache.get("c"), len(cache)), (1, 3, 2))

    def test_a_value_put_again_is_recent(self):
        cache = Cache(2)
        for key in ("a", "b", "a", "c"):
            cache.put(key, key)
        self.assertEqual((cache.get("a"), cache.get("b", 0)), ("a", 0))

    def test_hit_rate(self):
        cache = Cache(1)
        self.assertEqual(cache.hit_rate(), 0)
        cache.put("a", 1)
        for key in ("a", "a", "x", "a"):
            cache.get(key)
        self.assertEqual(cache.hit_rate(), 0.75)

    def test_capacity(self):
        with self.assertRaises(ValueError):
            Cache(0)
