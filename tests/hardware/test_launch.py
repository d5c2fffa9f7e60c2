from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import ConfigError
from greenward.hardware.launch import launch_command, main, shipped_configs

accelerate = pytest.importorskip("accelerate")


def environment(config: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What Accelerate's own launcher sets for the processes, given a shipped file."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = launch_command(["quickstart", "seed=3"], processes=2, config=str(shipped_configs()[config]))
    arguments: Namespace = launch_command_parser().parse_args(command[3:])
    assert arguments.training_script == "greenward" and arguments.module
    assert arguments.training_script_args == ["train", "quickstart", "seed=3"]
    arguments, defaults, _ = _validate_launch_command(arguments)
    assert arguments.num_processes == 2
    if not arguments.use_deepspeed:
        assert arguments.multi_gpu or arguments.use_fsdp  # else Accelerate starts a single process
        found: dict[str, str] = prepare_multi_gpu_env(arguments)
    else:
        arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
        _, found = prepare_deepspeed_cmd_env(arguments)
    return found


@pytest.mark.parametrize("config", ["ddp", "fsdp2", "zero3"])
def test_shipped_files_tell_the_processes_how_to_hold_the_weights(
    config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from greenward.training.distributed import sharding

    for name, value in environment(config, monkeypatch).items():
        monkeypatch.setenv(name, value)
    assert sharding() == config


def test_accelerate_reads_every_shipped_file() -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    kinds = {
        name: load_config_from_file(str(file)).distributed_type for name, file in shipped_configs().items()
    }
    assert kinds == {"ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero3": "DEEPSPEED"}


def test_several_machines_are_told_where_they_meet() -> None:
    command = launch_command(
        ["r.yaml"], processes=16, config="fsdp2", machines=2, machine_rank=1, address="node0:29500"
    )
    options = dict(zip(command[3::2], command[4::2], strict=False))
    assert options["--num_processes"] == "16" and options["--num_machines"] == "2"
    assert options["--machine_rank"] == "1"
    assert (options["--main_process_ip"], options["--main_process_port"]) == ("node0", "29500")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (
            {"processes": 1, "config": "fsdp2"},
            "fsdp2 shares the weights out over processes, and there is one",
        ),
        ({"processes": 2, "config": "fsdp3"}, "none of ddp, fsdp2, zero3"),
        ({"processes": 3, "machines": 2, "address": "a:1"}, "no multiple of --machines 2"),
        ({"processes": 4, "machines": 2}, "--address HOST:PORT of the first machine is missing"),
    ],
)
def test_what_cannot_be_launched_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        launch_command(["r.yaml"], **wrong)


def test_the_launcher_alone_refuses_a_recipe_and_shows_a_dry_run(monkeypatch: pytest.MonkeyPatch) -> None:
    launched: list[Any] = []
    monkeypatch.setattr("greenward.hardware.launch.launch", launched.append)
    command = ["launch", "quickstart", "--processes", "2"]
    for wrong in ("problems.train=/nowhere.json", "--fast"):
        assert CliRunner().invoke(cli, [*command, wrong]).exit_code != 0
    assert not launched
    assert CliRunner().invoke(cli, [*command, "--dataset", "families", "seed=3"]).exit_code == 0
    assert CliRunner().invoke(cli, [*command, "--dry-run"]).exit_code == 0
    several, one = launched
    assert "2" in several and several[-4:] == ["quickstart", "--dataset", "families", "seed=3"]
    assert one[1:] == ["-m", "greenward", "train", "quickstart", "--dry-run"]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("greenward.hardware.launch.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'greenward\[distributed\]'"):
        launch_command(["r.yaml"], processes=2)


@pytest.mark.parametrize(("ended", "code"), [(2, 2), (130, 130), (-9, 137)])
def test_the_launcher_ends_with_the_code_of_the_process_that_failed_first(
    ended: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

    failures = {
        rank: ProcessFailure(local_rank=rank, pid=1, exitcode=number, error_file="none")
        for rank, number in enumerate((1, ended))
    }
    failures[0].timestamp, failures[1].timestamp = 20, 10

    def fail() -> None:
        raise ChildFailedError("greenward", failures)

    monkeypatch.setattr("accelerate.commands.launch.main", fail)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == code
