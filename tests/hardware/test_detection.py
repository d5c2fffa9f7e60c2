"""Facts about machines that are not here: from texts, folders and environments."""

from __future__ import annotations

import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from greenward.common.control_groups import cpu_limit, usable_cores
from greenward.hardware import detection
from greenward.hardware.detection import detect, is_writable, reaches_hub, visible_gpus
from greenward.runs.machine import available_mb

V100 = "Tesla V100-SXM2-32GB, 32768, 7.0\n"
A100 = "NVIDIA A100-SXM4-80GB, 81920, 8.0\n"
H100 = "NVIDIA H100 80GB HBM3, 81559, 9.0\n"


@pytest.mark.parametrize(
    ("smi", "preset", "bfloat16"),
    [
        (V100, "v100", False),
        (A100, "a100", True),
        (H100, "h100", True),
        ("Tesla T4, 15360, 7.5", "v100", False),
    ],
)
def test_the_preset_follows_from_the_gpu(smi: str, preset: str, bfloat16: bool) -> None:
    (gpu,) = visible_gpus(smi, None)
    assert (gpu.preset, gpu.bfloat16) == (preset, bfloat16)


def test_visible_devices_and_messages_of_the_driver() -> None:
    text = V100 + "NVIDIA-SMI has failed because it couldn't communicate with the driver.\n" + A100
    assert [gpu.memory_mb for gpu in visible_gpus(text, None)] == [32768, 81920]
    assert [gpu.memory_mb for gpu in visible_gpus(text, "1")] == [81920]
    assert visible_gpus(text, "") == visible_gpus(text, "-1") == visible_gpus("", None) == ()
    assert len(visible_gpus(text, "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6")) == 1


def test_a_gpu_is_of_no_use_to_a_torch_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "version_of", lambda name: "2.13.0+cpu")
    found = detect({}, smi=H100)
    assert found.preset == "cpu" and any("CPU build" in warning for warning in found.warnings)
    monkeypatch.setattr(detection, "version_of", lambda name: "2.13.0+cu130")
    assert detect({}, smi=H100).preset == "h100"


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 10)])
def test_a_driver_that_is_missing_or_hangs_means_no_gpu(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert detect({}).gpus == ()


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 65536000 kB\nMemAvailable: 32768000 kB\n"}
JOB = "sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"


def test_limits_of_control_groups_hold_up_to_the_root(tmp_path: Path) -> None:
    files = {
        **MEMINFO,
        "proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7/step_0\n",
        f"{JOB}/step_0/cpu.max": "max 100000\n",
        f"{JOB}/step_0/memory.max": "max\n",
        f"{JOB}/step_0/memory.current": "1\n",
        f"{JOB}/cpu.max": "250000 100000\n",
        f"{JOB}/memory.max": f"{8 << 30}\n",
        f"{JOB}/memory.current": f"{3 << 30}\n",
    }
    root = write(tmp_path, files)
    assert cpu_limit(root) == 2.5 and usable_cores(root) == min(2, usable_cores(tmp_path / "nothing"))
    assert available_mb(root) == 5 * 1024


def test_limits_of_version_1_and_none_at_all(tmp_path: Path) -> None:
    root = write(tmp_path / "old", {
        **MEMINFO,
        "proc/self/cgroup": "4:cpu,cpuacct:/docker/x\n3:memory:/docker/x\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "150000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{4 << 30}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{1 << 30}\n",
    })  # fmt: skip
    assert cpu_limit(root) == 1.5 and usable_cores(root) == 1
    assert available_mb(root) == 3 * 1024
    free = write(tmp_path / "free", MEMINFO)
    assert cpu_limit(free) is None and available_mb(free) == 32000


def test_limits_of_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    """A machine of both versions names the group of version 2 last; it has no limits there."""
    groups = "4:cpu,cpuacct:/slurm/job_7\n3:memory:/slurm/job_7\n1:name=systemd:/x\n0::/system.slice/slurmd\n"
    for number, folder in enumerate(("cpu", "cpu,cpuacct")):
        root = write(tmp_path / str(number), {
            **MEMINFO,
            "proc/self/cgroup": groups,
            f"sys/fs/cgroup/{folder}/slurm/job_7/cpu.cfs_quota_us": "150000\n",
            f"sys/fs/cgroup/{folder}/slurm/job_7/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": f"{4 << 30}\n",
            "sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes": f"{1 << 30}\n",
        })  # fmt: skip
        assert cpu_limit(root) == 1.5 and usable_cores(root) == 1
        assert available_mb(root) == 3 * 1024


def test_a_group_of_version_2_may_have_the_name_of_a_controller(tmp_path: Path) -> None:
    root = write(tmp_path, {
        "proc/self/cgroup": "0::/job\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory\n",
        "sys/fs/cgroup/cpu/cpu.max": "100000 100000\n",
        "sys/fs/cgroup/job/cpu.max": "50000 100000\n",
    })  # fmt: skip
    assert cpu_limit(root) == 0.5 and usable_cores(root) == 1


def test_files_of_control_groups_that_make_no_sense_set_no_limit(tmp_path: Path) -> None:
    texts = "", "max", "100000", "100000 0", "-1 100000", "0 100000", "a b", "1 2 3", "max 100000"
    for number, text in enumerate(texts):
        root = write(tmp_path / str(number), {
            "proc/self/cgroup": "\nnonsense\n0::/job\n",
            "sys/fs/cgroup/job/cpu.max": text,
            "sys/fs/cgroup/cpu.max": "300000 100000\n",
        })  # fmt: skip
        assert cpu_limit(root) == 3.0
        (root / "proc/self/cgroup").write_bytes(b"0::/job\xff\n")
        assert cpu_limit(root) == 3.0


def test_slurm_and_sites_are_read_from_the_environment() -> None:
    job = {"SLURM_JOB_ID": "17", "SLURM_JOB_PARTITION": "xeon-g6-volta", "HOME": "/home/gridsan/someone"}
    found = detect(job, smi="", host="d-14-3-2")
    assert found.slurm == {"job": "17", "partition": "xeon-g6-volta"}
    assert found.site == "MIT Supercloud"
    plain = detect({"HOME": "/home/someone", "PATH": ""}, smi="", host="node")
    assert plain.slurm is None and plain.site is None


ROUTES = {"proc/net/route": "Iface\tDestination\tGateway\neth0\t000200C0\t00000000\n"}
DEFAULT = {"proc/net/route": ROUTES["proc/net/route"] + "eth0\t00000000\t010200C0\n"}
LOOPBACK = {"proc/net/ipv6_route": f"{'0' * 32} 00 {'0' * 32} 00 {'0' * 32} ffffffff 1 0 00200200       lo\n"}
OVER_IPV6 = {"proc/net/ipv6_route": LOOPBACK["proc/net/ipv6_route"].replace("lo", "eth0")}


@pytest.mark.parametrize(
    ("environ", "files", "reason"),
    [
        ({}, DEFAULT, None),
        ({}, {}, None),  # a system without these tables says nothing
        ({}, ROUTES, "there is no default route"),
        ({}, {**ROUTES, **LOOPBACK}, "there is no default route"),
        ({}, {**ROUTES, **OVER_IPV6}, None),
        ({"HTTPS_PROXY": "http://proxy:3128"}, ROUTES, None),
        ({"HF_HUB_OFFLINE": "1"}, DEFAULT, "HF_HUB_OFFLINE is set"),
        ({"TRANSFORMERS_OFFLINE": "true"}, DEFAULT, "TRANSFORMERS_OFFLINE is set"),
        ({"HF_HUB_OFFLINE": "0"}, ROUTES, None),
        ({"HOME": "/home/gridsan/someone"}, DEFAULT, "the nodes of MIT Supercloud have no connection"),
        ({"HOME": "/home/gridsan/someone", "HF_HUB_OFFLINE": "0"}, DEFAULT, None),
        (
            {"GREENWARD_OFFLINE_HOSTS": "login*, node-*"},
            DEFAULT,
            "the host name matches node-* of GREENWARD_OFFLINE_HOSTS",
        ),
    ],
)
def test_what_has_no_connection_is_found_without_waiting(
    environ: dict[str, str], files: dict[str, str], reason: str | None, tmp_path: Path
) -> None:
    root = write(tmp_path, {**MEMINFO, **files})
    assert detect(environ, root, smi="", host="node-7").offline == reason


def test_a_key_of_wandb_is_in_the_environment_or_in_netrc(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert not detect(home, smi="").wandb_key
    assert detect({**home, "WANDB_API_KEY": "x" * 40}, smi="").wandb_key
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert detect(home, smi="").wandb_key
    assert not detect({**home, "WANDB_BASE_URL": "https://wandb.example.org"}, smi="").wandb_key


def test_recipes_take_the_site_and_the_key_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    detection.this_machine.cache_clear()
    assert detection.this_machine().offline == "HF_HUB_OFFLINE is set"
    assert detection.this_machine().cache == ""
    (tmp_path / "model_cache").mkdir()
    monkeypatch.setattr(detection, "version_of", lambda name: "1.0")
    (tmp_path / ".env").write_text(f"WANDB_API_KEY={'k' * 40}\n")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    detection.this_machine.cache_clear()
    found = detection.this_machine()
    assert (found.cache, found.wandb) == ("./model_cache", True)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    detection.this_machine.cache_clear()


def test_a_cache_that_cannot_be_written_and_a_full_disk_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert is_writable(tmp_path / "new" / "folder") and not is_writable(tmp_path / "file" / "folder")
    usage = detection.shutil._ntuple_diskusage(100, 99, 1 << 30)
    monkeypatch.setattr(detection.shutil, "disk_usage", lambda folder: usage)
    warnings = detect({"HF_HOME": str(tmp_path / "file")}, smi="").warnings
    assert any("nearly full: 1.0 GiB" in warning for warning in warnings)
    assert any("cannot be written" in warning for warning in warnings)


def test_the_hub_is_reachable_when_it_answers_and_never_waited_for() -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(403)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    here = {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    assert reaches_hub(here, seconds=30)
    server.shutdown()
    server.server_close()
    assert not reaches_hub(here, seconds=30)  # refused at once
    silent = HTTPServer(("127.0.0.1", 0), Refusing)  # accepts connections and never answers
    assert not reaches_hub({"HF_ENDPOINT": f"http://127.0.0.1:{silent.server_port}"}, seconds=0.2)
    silent.server_close()
    assert not reaches_hub({"HF_ENDPOINT": "no url"}, seconds=30)
