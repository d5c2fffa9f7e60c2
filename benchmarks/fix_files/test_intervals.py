import unittest

from intervals import contains, covered, gaps, merge


class Intervals(unittest.TestCase):
    def test_merge(self):
        self.assertEqual(merge([(5, 8), (1, 3), (2, 4)]), [(1, 4), (5, 8)])
        self.assertEqual(merge([(1, 2), (2, 3)]), [(1, 3)])

    def test_merge_of_one_inside_another(self):
        self.assertEqual(merge([(1, 10), (2, 3)]), [(1, 10)])

    def test_covered(self):
        self.assertEqual(covered([(0, 2), (1, 4), (6, 7)]), 5)
        self.assertEqual(covered([]), 0)

    def test_gaps(self):
        self.assertEqual(gaps([(6, 7), (0, 2), (3, 4)]), [(2, 3), (4, 6)])

    def test_contains(self):
        self.assertTrue(contains([(1, 2), (5, 6)], 6))
        self.assertFalse(contains([(1, 2)], 3))
