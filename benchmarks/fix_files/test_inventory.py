import pytest

from inventory import Inventory, OutOfStock


@pytest.fixture
def shop():
    inventory = Inventory()
    inventory.add("pen", 10, 120)
    inventory.add("book", 2, 1500)
    return inventory


def test_numbers_add_up_and_the_newest_price_holds(shop):
    shop.add("pen", 5, 100)
    assert shop.count("pen") == 15
    assert shop.value() == 15 * 100 + 2 * 1500


def test_value(shop):
    assert shop.value() == 4200


def test_remove(shop):
    shop.remove("pen", 4)
    assert shop.count("pen") == 6
    shop.remove("book", 2)
    assert shop.articles() == ["pen"]


def test_too_many(shop):
    with pytest.raises(OutOfStock):
        shop.remove("book", 3)
    assert shop.count("book") == 2


def test_none_is_added(shop):
    with pytest.raises(ValueError):
        shop.add("pen", 0, 1)
