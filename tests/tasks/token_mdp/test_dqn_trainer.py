"""The search tree of exploration, against programs that are closed by hand, and the order of practice."""

from __future__ import annotations

import numpy as np

from greenward.tasks.token_mdp.trainer import SearchTree, extended, practised

ALL, LAST = np.array([True, True, False]), np.array([False, False, True])
ROOT = 1


def test_a_written_program_is_closed_and_so_is_a_prefix_once_all_that_can_follow_is() -> None:
    tree = SearchTree()
    tree.add(ROOT, [0, 2, 0], {0: ALL, 2: ALL}, all_room=True)  # the 2 was forced
    after_0 = extended(extended(ROOT, 0), 2)
    assert tree.of_actions(after_0, ALL)[1].tolist() == [False, True, False]
    assert tree.of_actions(ROOT, ALL)[1].tolist() == [True, True, False]
    tree.add(ROOT, [0, 2, 1], {0: ALL, 2: ALL}, all_room=True)
    assert tree.of_actions(ROOT, ALL)[1].tolist() == [False, True, False]
    tree.add(ROOT, [1, 2], {0: ALL}, all_room=True)
    assert tree.of_actions(ROOT, ALL)[1].tolist() == ALL.tolist()  # nothing is left: all may be repeated


def test_a_program_that_had_less_room_closes_no_prefix() -> None:
    tree = SearchTree()
    tree.add(ROOT, [0, 2], {0: ALL}, all_room=False)  # with all room, something else than 2 may follow
    assert tree.of_actions(ROOT, ALL)[1].tolist() == [True, True, False]
    assert tree.of_actions(extended(ROOT, 0), LAST)[1].tolist() == LAST.tolist()  # nothing else is legal
    assert tree.of_actions(extended(ROOT, 0), ~ALL | ALL)[1].tolist() == [True, True, False]


def test_an_episode_adds_one_decision_to_those_that_are_counted() -> None:
    tree = SearchTree()
    for counts in ([1, 0, 0], [2, 0, 0]):
        tree.add(ROOT, [0, 1, 1], {0: ALL, 1: ALL, 2: ALL}, all_room=True)
        assert tree.of_actions(ROOT, ALL)[0].tolist() == counts
    assert tree.of_actions(extended(ROOT, 0), ALL)[0].tolist() == [0, 1, 0]
    assert tree.of_actions(extended(extended(ROOT, 0), 1), ALL)[0].tolist() == [0, 0, 0]


def test_practice_begins_with_the_shortest_programs_and_reaches_all_of_them() -> None:
    rng = np.random.default_rng(0)
    drawn = [practised(100, step, 5, 10, rng) for step in range(30)]
    assert {len(one) for one in drawn} == {5}
    for step, one in enumerate(drawn[:10]):
        assert max(one) < 10 * (step + 1)
    assert len({index for one in drawn for index in one}) > 50
    assert max(index for one in drawn[10:] for index in one) > 90
    assert max(practised(3, 0, 5, 10, rng)) <= 2
