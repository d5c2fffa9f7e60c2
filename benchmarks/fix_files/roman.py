"""Converts between whole numbers and Roman numerals."""

SYMBOLS = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
    (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]  # fmt: skip


def to_roman(number):
    """The numeral of a number from 1 to 3999."""
    if not 1 <= number <= 3999:
        raise ValueError(f"{number} has no Roman numeral")
    parts = []
    for value, symbol in SYMBOLS:
        # A symbol may be repeated.
        while number >= value:
            parts.append(symbol)
            number -= value
    return "".join(parts)


def from_roman(text):
    """The number of a numeral."""
    values = {symbol: value for value, symbol in SYMBOLS if len(symbol) == 1}
    total = 0
    for position, symbol in enumerate(text):
        value = values[symbol]
        following = values[text[position + 1]] if position + 1 < len(text) else 0
        total += -value if value < following else value
    return total
