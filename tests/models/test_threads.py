"""How many threads compute: as many as are fast, unless the user or an earlier session says otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from greenward.cli.main import main
from greenward.models import threads
from greenward.models.threads import settle_threads, use_free_cores
from tiny_model import DATA, REINFORCED

Speeds = Callable[..., None]


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Speeds:
    """`speeds({1: 10.0, 2: 3.0})`: products per second by the number of threads that is set."""

    def set_speeds(by_threads: dict[int, float]) -> None:
        monkeypatch.setattr(threads, "_products_per_second", lambda: by_threads[torch.get_num_threads()])

    return set_speeds


@pytest.mark.parametrize("two", [0.3, 0.8, 7.9])
def test_threads_that_are_slower_than_one_are_not_used(speeds: Speeds, two: float) -> None:
    speeds({1: 10.0, 2: two})
    said = settle_threads(None, None)
    assert torch.get_num_threads() == 1
    assert said is not None
    assert f"2 threads compute at {two / 10:.2f} times the speed of one. Using 1 thread" in said
    assert "training.threads=2 overrides" in said


@pytest.mark.parametrize("two", [8.5, 18.0])
def test_idle_cores_are_used_and_not_mentioned(speeds: Speeds, two: float) -> None:
    speeds({1: 10.0, 2: two})
    assert settle_threads(None, None) is None
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(
    "set_threads", [lambda: settle_threads(None, None), lambda: use_free_cores(torch.device("cpu"))]
)
def test_a_container_gets_as_many_threads_as_its_quota(
    speeds: Speeds, monkeypatch: pytest.MonkeyPatch, set_threads: Callable[[], str | None]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "usable_cores", lambda: 3)
    torch.set_num_threads(8)
    speeds({1: 10.0, 3: 25.0, 8: 20.0})
    assert set_threads() is None
    assert torch.get_num_threads() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "8")  # the user's
    torch.set_num_threads(8)
    set_threads()
    assert torch.get_num_threads() == 8


def test_a_single_thread_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(1)
    monkeypatch.setattr(threads, "_products_per_second", lambda: pytest.fail("measured"))
    assert settle_threads(None, None) is None


def test_the_users_number_is_kept_and_the_remedy_said(speeds: Speeds) -> None:
    speeds({1: 10.0, 2: 3.0})
    said = settle_threads(2, None)
    assert torch.get_num_threads() == 2
    assert said is not None and "training.threads=1" in said
    assert settle_threads(1, 2) is None
    assert torch.get_num_threads() == 1


def test_a_resumed_run_has_as_many_threads_as_before(speeds: Speeds) -> None:
    speeds({1: 10.0, 2: 3.0})
    said = settle_threads(None, 2)
    assert torch.get_num_threads() == 2
    assert said is not None and "Using 2 threads as before; training.threads=1 overrides" in said
    speeds({1: 10.0, 2: 18.0})
    said = settle_threads(None, 1)
    assert torch.get_num_threads() == 1
    assert said is not None and "training.threads=2 overrides" in said


@pytest.mark.parametrize("recorded", [None, "2", 0, -1, 3, 10**9, 1.5])
def test_a_record_that_this_machine_cannot_follow_counts_as_none(speeds: Speeds, recorded: object) -> None:
    speeds({1: 10.0, 2: 3.0})
    settle_threads(None, recorded)
    assert torch.get_num_threads() == 1


def test_commands_without_a_key_follow_the_variable(speeds: Speeds, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds({1: 10.0, 2: 3.0})
    cpu = torch.device("cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert use_free_cores(cpu) is None
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert use_free_cores(torch.device("cuda")) is None
    assert torch.get_num_threads() == 2
    said = use_free_cores(cpu)
    assert torch.get_num_threads() == 1
    assert said is not None and "Using 1 thread; the variable OMP_NUM_THREADS=2 overrides" in said


def test_an_evaluation_on_busy_cores_uses_one_thread(
    speeds: Speeds, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    speeds({1: 10.0, 2: 3.0})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with pytest.raises(SystemExit) as stopped:
        main(["eval", str(DATA / "starter"), "--suite", str(DATA / "problems.json"), "--require", "D",
              "--max-tokens", "8", "--out", str(tmp_path / "evaluation")])  # fmt: skip
    assert stopped.value.code in (0, None)
    said = capsys.readouterr()
    assert "Using 1 thread; the variable" in " ".join((said.out + said.err).split())
    assert torch.get_num_threads() == 2  # of the program that asked for the evaluation


def test_the_measurement_leaves_the_number_of_threads_as_it_was() -> None:
    for number in (1, 2):
        torch.set_num_threads(number)
        threads._relative_speed(number)
        assert torch.get_num_threads() == number


def test_a_training_on_busy_cores_says_so_records_its_threads_and_goes_on_with_them(
    speeds: Speeds, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(steps: int, *arguments: str) -> tuple[str, list[int]]:
        free = [text for text in REINFORCED if not text.startswith("training.threads")]
        with pytest.raises(SystemExit) as stopped:
            main(["train", "quickstart", *free, "evaluation.enabled=false", f"training.max_steps={steps}",
                  "--output", str(tmp_path / "run"), *arguments])  # fmt: skip
        assert stopped.value.code in (0, None)
        assert torch.get_num_threads() == 2  # of the program that asked for the training
        provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())
        said = capsys.readouterr()
        return said.out + said.err, [session["threads"] for session in provenance["sessions"]]

    speeds({1: 10.0, 2: 3.0})
    said, used = train(1)
    assert "Using 1 thread; training.threads=2 overrides" in " ".join(said.split())
    assert used == [1]
    speeds({1: 10.0, 2: 18.0})
    said, used = train(2, "--resume")
    assert "Using 1 thread as before" in " ".join(said.split())
    assert used == [1, 1]
