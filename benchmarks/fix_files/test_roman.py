import unittest

from roman import from_roman, to_roman


class Roman(unittest.TestCase):
    def test_to_roman(self):
        for number, text in ((1, "I"), (3, "III"), (4, "IV"), (1994, "MCMXCIV"), (3999, "MMMCMXCIX")):
            self.assertEqual(to_roman(number), text)

    def test_from_roman(self):
        for number, text in ((1, "I"), (4, "IV"), (9, "IX"), (1994, "MCMXCIV")):
            self.assertEqual(from_roman(text), number)

    def test_there_and_back(self):
        for number in range(1, 400):
            self.assertEqual(from_roman(to_roman(number)), number)

    def test_out_of_range(self):
        for number in (0, 4000):
            with self.assertRaises(ValueError):
                to_roman(number)
