import unittest

from graph import has_cycle, reachable, shortest_path

GRAPH = {"a": {"b": 7, "c": 1}, "c": {"d": 2, "b": 9}, "d": {"b": 3}, "b": {}}


class Graph(unittest.TestCase):
    def test_shortest_path(self):
        self.assertEqual(shortest_path(GRAPH, "a", "b"), (6, ["a", "c", "d", "b"]))
        self.assertEqual(shortest_path(GRAPH, "a", "a"), (0, ["a"]))

    def test_no_path(self):
        self.assertIsNone(shortest_path(GRAPH, "b", "a"))

    def test_reachable(self):
        self.assertEqual(reachable(GRAPH, "a"), {"a", "b", "c", "d"})
        self.assertEqual(reachable({"x": {"y": 1}, "y": {"x": 1}}, "x"), {"x", "y"})

    def test_cycle(self):
        self.assertFalse(has_cycle(GRAPH))
        self.assertTrue(has_cycle({"a": {"b": 1}, "b": {"a": 1}}))
