import unittest

from stack_machine import evaluate, to_postfix, tokens


class StackMachine(unittest.TestCase):
    def test_tokens(self):
        self.assertEqual(tokens("12 + (3*45)"), [12, "+", "(", 3, "*", 45, ")"])

    def test_postfix(self):
        self.assertEqual(to_postfix("1 + 2 * 3"), [1, 2, 3, "*", "+"])
        self.assertEqual(to_postfix("(1 + 2) * 3"), [1, 2, "+", 3, "*"])

    def test_from_the_left(self):
        self.assertEqual(evaluate("10 - 4 - 3"), 3)
        self.assertEqual(evaluate("24 / 4 / 2"), 3)

    def test_value(self):
        self.assertEqual(evaluate("2 * (3 + 4) - 5"), 9)
