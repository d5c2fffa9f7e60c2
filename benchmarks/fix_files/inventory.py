"""Keeps the stock of a shop."""


class OutOfStock(Exception):
    """There are fewer articles than were asked for."""


class Inventory:
    """Articles with their number and their price in cents."""

    def __init__(self):
        self._stock = {}

    def add(self, article, number, price):
        """Put articles into stock; the newest price holds for all of them."""
        if number < 1:
            raise ValueError("at least one article is added")
        before, _ = self._stock.get(article, (0, price))
        self._stock[article] = (before + number, price)

    def remove(self, article, number):
        """Take articles out of stock."""
        before, price = self._stock.get(article, (0, 0))
        if number > before:
            raise OutOfStock(article)
        if number == before:
            del self._stock[article]
        else:
            self._stock[article] = (before - number, price)

    def count(self, article):
        """How many there are."""
        return self._stock.get(article, (0, 0))[0]

    def value(self):
        """What the whole stock is worth, in cents."""
        return sum(number * price for number, price in self._stock.values())

    def articles(self):
        """The names of all articles, sorted."""
        return sorted(self._stock)
