import unittest

from matrix import identity, multiply, power, rotate, transpose


class Matrix(unittest.TestCase):
    def test_transpose(self):
        self.assertEqual(transpose([[1, 2, 3], [4, 5, 6]]), [[1, 4], [2, 5], [3, 6]])

    def test_multiply(self):
        self.assertEqual(multiply([[1, 2], [3, 4]], [[5, 6], [7, 8]]), [[19, 22], [43, 50]])
        self.assertEqual(multiply([[1, 2, 3]], [[1], [2], [3]]), [[14]])
        with self.assertRaises(ValueError):
            multiply([[1, 2]], [[1, 2]])

    def test_power(self):
        self.assertEqual(power([[1, 1], [1, 0]], 10), [[89, 55], [55, 34]])
        self.assertEqual(power([[2, 0], [0, 2]], 0), identity(2))

    def test_rotate(self):
        self.assertEqual(rotate([[1, 2], [3, 4]]), [[3, 1], [4, 2]])
