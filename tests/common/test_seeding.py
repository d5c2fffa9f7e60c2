from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from greenward.common.seeding import shuffled_index, step_seed


@given(size=st.integers(1, 60), seed=st.integers(0, 2**40))
def test_every_epoch_visits_every_element_once(size, seed):
    for epoch in range(3):
        visited = [shuffled_index(size, epoch * size + offset, seed=seed) for offset in range(size)]
        assert Counter(visited) == Counter(range(size))


def test_epochs_are_shuffled_differently():
    first = [shuffled_index(50, position, seed=1) for position in range(50)]
    second = [shuffled_index(50, 50 + position, seed=1) for position in range(50)]
    assert first != second


def test_a_cursor_can_be_read_in_any_order():
    forward = [shuffled_index(11, position, seed=3) for position in range(300)]
    backward = [shuffled_index(11, position, seed=3) for position in reversed(range(300))]
    assert forward == backward[::-1]


def test_seeds_differ_by_run_step_and_purpose():
    seeds = {step_seed(run, step, purpose) for run in range(5) for step in range(50) for purpose in "abc"}
    assert len(seeds) == 5 * 50 * 3
    assert all(0 <= seed < 2**63 for seed in seeds)
