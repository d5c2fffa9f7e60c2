"""Defines the commands that take a recipe, those that submit it to Slurm, and `validate-model`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenward.cli.options import (
    COUNT,
    PATH,
    Commands,
    Interrupted,
    OutputFile,
    complete_recipe,
    flag,
    folder_option,
    json_option,
    overrides_argument,
    overwrite_option,
    quiet_option,
    recipe_argument,
    resume_command_on_interrupt,
    with_options,
)
from greenward.common.terminal import echo, echo_json
from greenward.common.text import visible, without_keys

if TYPE_CHECKING:
    from greenward.config.importing import Imported

# Options that users of other trainers know, and the keys that they set.
ALIASES: dict[str, tuple[str, ...]] = {
    "model": ("model.id",),
    "dataset": ("problems.train", "problems.held_out"),
    "learning_rate": ("training.learning_rate",),
    "max_grad_norm": ("training.max_grad_norm",),
    "seed": ("seed",),
    "num_episodes": ("training.num_episodes",),
    "skip_bad_rows": ("problems.skip_bad_rows",),
}
QUICK = (
    "warm_start.max_steps=20",
    "training.max_steps=2",
    "evaluation.num_questions=16",
    "evaluation.samples=2",
    "evaluation.k=[1,2]",
)


@click.command()
@click.argument("recipe", metavar="[CONFIG]", required=False, shell_complete=complete_recipe)
@overrides_argument
@click.option(
    "--config", type=PATH, help="The same as CONFIG; like it, a recipe or a configuration of another system."
)
@flag("--resume", help="Continue the run in the output directory, exactly.")
@flag("--dry-run", help="Check, then show settings, model size and first prompt; train nothing.")
@folder_option("--output", "The run directory.  [default: runs/NAME, the recipe's name]", "run")
@overwrite_option
@quiet_option
@click.option("--show", type=click.IntRange(min=0), default=0, help="Show the first N episodes.")
@click.option("--model", metavar="NAME", help="model.id; 7b is Qwen/Qwen2.5-Coder-7B-Instruct.")
@click.option("--dataset", metavar="NAME", help="problems.train and held_out; code_bugs is bugs:families.")
@click.option("--learning-rate", help="training.learning_rate.")
@click.option("--max-grad-norm", help="training.max_grad_norm.")
@click.option("--seed", help="seed.")
@click.option("--num-episodes", help="training.num_episodes, with task token_mdp.")
@flag("--skip-bad-rows", default=None, help="problems.skip_bad_rows: leave out rows that cannot be used.")
def train(
    recipe: str | None, overrides: tuple[str, ...], *, config: Path | None, output: Path | None, quiet: bool,
    dry_run: bool, **chosen: Any,
) -> None:  # fmt: skip
    """Train with the recipe CONFIG.

    CONFIG is a YAML file or the name of a shipped recipe; KEY=VALUE overrides a key of it. A configuration
    of another system is turned into a recipe as by `greenward import`. The last seven options set the keys
    that their help names.

    \b
    greenward train quickstart
    greenward train my.yaml training.max_steps=50 rewards.0.weight=2
    greenward train my.yaml --resume
    """
    if config is not None:
        overrides = (*([recipe] if recipe is not None else []), *overrides)
        recipe = str(config)
    if recipe is None:
        raise click.UsageError("name a recipe: CONFIG, or --config FILE.")
    if not quiet:  # before the packages are loaded, which takes seconds
        echo(f"Reading the recipe {recipe}; loading torch.", err=True)
    import tempfile

    import greenward.api as api

    overrides = (*aliased(chosen), *overrides)
    how = {name: chosen[name] for name in ("resume", "overwrite", "show")}
    how |= {"quiet": quiet, "dry_run": dry_run}
    with (
        tempfile.TemporaryDirectory(prefix="greenward-") as folder,
        resume_command_on_interrupt("train", recipe, *overrides, output=output, quiet=quiet),
    ):
        recipe = _as_recipe(recipe, Path(folder), quiet=quiet)
        result = api.train(recipe, overrides, output=output, **how)
        if not (result.finished or dry_run):
            stored = result.run / "config.yaml"  # the recipe with its overrides
            raise Interrupted(*([str(stored)] if stored.is_file() else []))


def _as_recipe(given: str, folder: Path, *, quiet: bool) -> str:
    """The recipe that is given; that of another system's configuration is written into the folder."""
    if not Path(given).exists():
        return given  # the name of a shipped recipe, or nothing
    from greenward.config.importing import import_config, is_original

    if not is_original(given):
        return given
    imported = import_config(given)
    if not quiet:
        echo(_fates(imported))
    recipe = folder / f"{imported.recipe}.yaml"
    recipe.write_text(imported.text, encoding="utf-8")
    return str(recipe)


def _fates(imported: Imported) -> str:
    """What became of each key, as lines."""
    lines = [f"{imported.original}: becomes the recipe {imported.recipe}, changed in these keys."]
    for fate in ("taken over", "renamed", "without counterpart"):
        found = [one for one in imported.fates if one.fate == fate]
        lines += ["", f"{fate} ({len(found)})"] if found else []
        width = max((len(one.theirs) for one in found), default=0)
        for one in found:
            same = one.ours == one.theirs and one.value == one.given
            becomes = one.why or ("the same" if same else f"{one.ours}={json.dumps(one.value)}")
            lines.append(f"  {one.theirs:{width}}  {json.dumps(one.given, default=str)[:40]:12}  {becomes}")
    return "\n".join(lines)


@click.command("import")
@click.argument("config", type=PATH)
@click.option("--output", "-o", type=OutputFile(), help="The recipe.  [default: RECIPE_imported.yaml]")
@json_option
def import_(config: Path, *, output: Path | None, as_json: bool) -> None:
    """Turn CONFIG, a configuration of another system, into a recipe.

    CONFIG is the YAML of a code-fix training for RLDK, of rl_coding_games (GRPO, the game of code, SPIRAL,
    MBPP), of a token-by-token DQN, or of CodeRepairRL (a folder of hydra's, or a file with its defaults).
    Printed is what became of each key: taken over, renamed, or without counterpart and why.

    \b
    greenward import configs/train_config.yaml
    greenward import src/conf --output repair.yaml
    """
    from dataclasses import asdict

    from greenward.config.importing import import_config
    from greenward.runs.files import write_atomically
    from greenward.runs.output import check_file

    imported = import_config(config)
    if output is None:
        output = Path(f"{imported.recipe}_imported.yaml")
        check_file(output)
    write_atomically(output, imported.text.encode())
    if as_json:
        echo_json(json.dumps({"recipe": str(output), **asdict(imported)}, indent=2, default=str))
        return
    echo(_fates(imported))
    echo(f"\nWrote {output}. Next: greenward config check {output}, then greenward train {output}.")


@click.command(context_settings={"ignore_unknown_options": True})
@recipe_argument
@click.argument("arguments", metavar="[KEY=VALUE | OPTION OF TRAIN]...", nargs=-1, type=click.UNPROCESSED)
@click.option("--processes", type=COUNT, required=True, help="Number, of all machines.")
@click.option("--config", default="ddp", help="ddp, fsdp2, zero3 or a file of Accelerate.")
@click.option("--machines", type=COUNT, default=1, help="Their number.")
@click.option("--machine-rank", type=click.IntRange(min=0), default=0, help="Number of this one, from 0.")
@click.option("--address", metavar="HOST:PORT", help="Where the processes of several machines meet.")
def launch(recipe: str, arguments: tuple[str, ...], **options: Any) -> None:
    """Train with the recipe CONFIG in several processes.

    \b
    greenward launch quickstart --processes 2
    greenward launch my.yaml --processes 8 --config fsdp2 training.max_steps=50 --resume
    """
    import greenward
    from greenward.hardware import launch as launcher
    from greenward.recipes.run import check_needs

    # Below this context, whose settings say how options are spelt.
    given = train.make_context("train", [recipe, *arguments], parent=click.get_current_context()).params
    if given["dry_run"]:
        options = {"processes": 1}
    command = launcher.launch_command((recipe, *arguments), **options)
    check_needs(greenward.load_recipe(recipe, (*aliased(given), *given["overrides"])))  # else each says it
    launcher.launch(command)


def aliased(given: Mapping[str, Any]) -> list[str]:
    """The overrides that options of `ALIASES` stand for, some of which have names for values."""
    from greenward.config.originals import DATASETS, MODELS

    names: dict[str, Mapping[Any, str]] = {
        "model": MODELS, "dataset": DATASETS, "skip_bad_rows": {True: "true"},
    }  # fmt: skip
    return [
        f"{key}={names.get(option, {}).get(given[option], given[option])}"
        for option, keys in ALIASES.items()
        if given[option] is not None
        for key in keys
    ]


def _seeds(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts) or len(set(map(int, parts))) != len(parts):
        raise click.BadParameter(f"expected different whole numbers with commas between, found {text!r}")
    return tuple(map(int, parts))


@click.command()
@overrides_argument
@click.option("--seeds", default="0,1", callback=_seeds, help="One run for each seed.")
@flag("--quick", help="A few steps only: shows that everything works, learns nothing.")
@flag("--resume", help="Continue an interrupted demo in the output directory.")
@folder_option("--output", "The folder of all runs.  [default: runs/demo]", "runs")
@overwrite_option
@quiet_option
def demo(
    overrides: tuple[str, ...], *, seeds: tuple[int, ...], quick: bool, output: Path | None, quiet: bool,
    **how: Any,
) -> None:  # fmt: skip
    """Watch a small model learn to write Python.

    Warm start from random weights, then GRPO, rejection sampling and further supervised training for the
    same time each, and a report that compares them.

    With model=FOLDER_FILE_OR_ID adapters of a pretrained model are trained instead, by GRPO and by rejection
    sampling, one after the other.
    """
    folder = output or Path("runs/demo")
    if not quiet:  # before the packages are loaded, which takes seconds
        what = "A trial of a few steps, which learns nothing" if quick else "Training and comparing"
        echo(f"{what}, into {folder}; loading torch.", err=True)
    from greenward.recipes import sweep as recipes

    options = (f"--seeds={','.join(map(str, seeds))}", *(["--quick"] if quick else []))
    with resume_command_on_interrupt("demo", *overrides, *options, output=output, quiet=quiet):
        overrides = (*QUICK, *overrides) if quick else overrides
        if not recipes.demo(folder, seeds=seeds, overrides=overrides, quiet=quiet, **how):
            raise Interrupted
    if quick and not quiet:
        echo("These are the figures of a trial of a few steps; without --quick a model learns.")


@click.command()
@recipe_argument
@overrides_argument
@folder_option("--output", "The folder of all runs.  [default: runs/sweep]", "runs")
@overwrite_option
@click.option("--jobs", type=COUNT, default=1, help="Runs at a time.")
@flag("--resume", help="Go on: finished runs are kept, and the grid may have grown.")
@quiet_option
def sweep(
    recipe: str, overrides: tuple[str, ...], *, output: Path | None, jobs: int, quiet: bool, **how: Any
) -> None:
    """Train with CONFIG once for every combination of the values that keys are given.

    KEY=A,B and KEY=0..4 give a key several values; commas within brackets and quotes do not separate. One
    report compares the combinations, each over its seeds. A failed run does not stop the others. Runs at
    a time share cores and GPUs.

    \b
    greenward sweep quickstart training.learning_rate=1e-4,3e-4 seed=0..2 --jobs 2
    """
    from greenward.recipes import sweep as recipes

    options = [] if jobs == 1 else [f"--jobs={jobs}"]
    with resume_command_on_interrupt("sweep", recipe, *overrides, *options, output=output, quiet=quiet):
        folder = output or Path("runs/sweep")
        if not recipes.sweep(recipe, overrides, folder, jobs=jobs, quiet=quiet, **how):
            raise Interrupted


@click.command()
@click.argument("folder", type=PATH)
def init(folder: Path) -> None:
    """Write a recipe, problems and a reward function to start from into FOLDER.

    They train as they are, in two minutes on two CPU cores. A file that is there is never overwritten.

    \b
    greenward init my_project
    cd my_project
    greenward train recipe.yaml
    """
    from greenward.recipes.starter import RECIPE, write_project

    for file in write_project(folder):
        echo(file)
    echo("Check them, then train:")
    if folder.resolve() != Path.cwd():
        echo(f"  cd {shlex.quote(str(folder))}")
    echo(f"  greenward config check {RECIPE}\n  greenward train {RECIPE}")


@click.group(cls=Commands)
def config() -> None:
    """List, show or check recipes."""


@config.command("list")
def list_recipes() -> None:
    """List the recipes that come with greenward, each with what it trains."""
    from greenward.config.loading import about_recipe, shipped_recipes

    recipes = shipped_recipes()
    width = max(map(len, recipes))
    for name, file in recipes.items():
        echo(f"{name:{width}}  {about_recipe(file)}")
    echo("`greenward config show NAME` prints all keys of one; `greenward init` writes one of your own.")


@config.command()
@recipe_argument
@overrides_argument
def show(recipe: str, overrides: tuple[str, ...]) -> None:
    """Print every key of CONFIG as resolved, defaults included."""
    import greenward
    from greenward.config.loading import dump, preset_line

    resolved = greenward.load_recipe(recipe, overrides)
    echo(dump(resolved), nl=False)
    if line := preset_line(resolved):
        echo(f"# {line}")


@config.command()
@recipe_argument
@overrides_argument
@json_option
def check(recipe: str, overrides: tuple[str, ...], *, as_json: bool) -> None:
    """Check CONFIG as far as is possible without training.

    Problems and pairs are read, references run, rewards called on made-up answers, and prompts measured by
    the model's tokenizer. Its weights are not read, and nothing is fetched. Warnings are no failure.
    """
    import greenward
    from greenward.common.errors import GreenwardError
    from greenward.config.loading import find_recipe
    from greenward.recipes.run import check_recipe

    found: dict[str, list[str]] = {"read": [], "warnings": [], "errors": []}

    def keep(kind: str, shown: str, line: str) -> None:
        found[kind].append(line)
        if not as_json:
            echo(f"{shown}{line}")

    try:
        resolved = greenward.load_recipe(recipe, overrides)
        check_recipe(resolved, say=partial(keep, "read", ""), warn=partial(keep, "warnings", "warning: "))
    except GreenwardError as error:
        if not as_json:
            raise
        found["errors"].append(visible(without_keys(str(error))))
    if not as_json:
        echo(f"{find_recipe(recipe)}: good.")
        return
    echo_json(json.dumps({"recipe": recipe, "good": not found["errors"], **found}, indent=2))
    if found["errors"]:
        raise SystemExit(2)


@config.command()
@click.argument("file", type=PATH)
def upgrade(file: Path) -> None:
    """Rewrite FILE, a recipe of an earlier version, with the keys of this one.

    What was there is kept as FILE.old. Sections that stay the same keep their comments.
    """
    import shutil

    from greenward.common.errors import ConfigError
    from greenward.config.loading import RecipeText, parse_recipe, read_recipe_file
    from greenward.config.upgrade import upgraded_text
    from greenward.runs.files import write_atomically

    file = file.resolve()
    text = read_recipe_file(file)
    RecipeText.read_recipe(text, str(file))
    upgraded = upgraded_text(text)
    if upgraded == text:
        echo(f"{file}: nothing to rewrite.")
        return
    old = file.with_name(f"{file.name}.old")
    if old.exists():
        raise ConfigError(f"{old} is there already.", remedy="Move it away; it would be overwritten.")
    write_atomically(old, text.encode())
    shutil.copymode(file, old)
    write_atomically(file, upgraded.encode())
    shutil.copymode(old, file)
    echo(f"{file}: rewritten; {old} is what was there.")
    parse_recipe(upgraded, name=str(file))


@config.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from greenward.config.loading import schema_json

    echo(schema_json())


_file = partial(click.option, type=PATH)
_count = partial(click.option, type=COUNT)
_job_options = with_options(
    recipe_argument,
    overrides_argument,
    folder_option(
        "--output", "The run directory.  [default: runs/NAME; of a grid, runs/sweep]", "run", "runs"
    ),
    click.option("--partition", help="The partition, or several with commas between."),
    click.option("--account", help="The account that is charged."),
    _count("--nodes", default=1),
    click.option("--gpus", default="0", help="GPUs of each node: 4, or h100:4."),
    _count("--cpus", help="CPU cores of each node."),
    click.option("--memory", help="Memory of each node, such as 32G."),
    click.option("--time", default="04:00:00", help="The time limit of one session."),
    click.option(
        "--stop-before",
        type=click.IntRange(1, 65535),
        default=300,
        help="How long before its end it is stopped.",
    ),
    click.option(
        "--requeues", type=click.IntRange(min=0), help="How often it goes on at most.  [default: 100]"
    ),
    _count("--jobs", help="Runs of a grid at a time.  [default: any]"),
    folder_option("--logs", "The folder of job_ID/training_output.log.  [default: logs]", "logs"),
    _file("--venv", help="A virtual environment.  [default: the one in use]"),
    click.option("--module", "modules", multiple=True, help="A module to load; may be repeated."),
    _file("--container", help="An Apptainer image that holds greenward."),
    _file("--accelerate-config", help="A file of Accelerate, for several GPUs."),
    _file("--cache", help="The folder of downloaded models and data (HF_HOME)."),
    flag("--offline", help="Nodes have no network: read the cache only."),
    click.option("--sbatch", multiple=True, help="A further option of sbatch; may be repeated."),
)


@click.group(cls=Commands)
def slurm() -> None:
    """Train on a Slurm cluster: jobs that stop at a checkpoint before their time limit and go on."""


@slurm.command()
@_job_options
def render(recipe: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Print the batch script that trains with CONFIG.

    KEY=A,B and KEY=0..4 give a key several values, as for `sweep`: every combination is a task of an array.

    \b
    greenward slurm render quickstart --partition gpu --gpus 1 --time 12:00:00 > job.sh
    """
    echo(_script(recipe, overrides, options)[0], nl=False)


@slurm.command()
@_job_options
def submit(recipe: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Submit the script that `render` prints, and print the id of the job."""
    from greenward.hardware.launch import submit as submit_script

    echo(submit_script(*_script(recipe, overrides, options)))


def _script(recipe: str, overrides: tuple[str, ...], options: dict[str, Any]) -> tuple[str, Path]:
    """The script and the folder of its logs. Keys and values are checked; what the nodes have is not."""
    from greenward.common.errors import ConfigError
    from greenward.config.loading import Surroundings, resolved_grid
    from greenward.config.recipe import ModelRecipe
    from greenward.hardware.launch import SlurmOptions
    from greenward.hardware.launch import render as render_script

    output = options.pop("output")
    job = SlurmOptions(**{name: value for name, value in options.items() if value is not None})
    grid = resolved_grid(recipe, overrides, machine=lambda: Surroundings(job.preset))
    models = [one for one in grid.values() if isinstance(one, ModelRecipe) and one.model.device != "cpu"]
    if job.processes and any(one.model.id is None for one in models):
        raise ConfigError(
            f"{recipe} names no model: the job would train its small decoder from random weights on a GPU.",
            remedy="Name a model, such as model=auto (the one that suits the GPU) or "
            "model=Qwen/Qwen2.5-1.5B; or leave --gpus out.",
        )
    runs = list(grid)
    if output is None and len(runs) > 1:
        output = Path("runs/sweep")
    return render_script(recipe, runs, output, job), job.logs


@click.command()
@click.argument("model")
@overrides_argument
@folder_option("--output", "Keep the run of the three steps there.  [default: removed]", "run")
def validate_model(model: str, overrides: tuple[str, ...], *, output: Path | None) -> None:
    """Check a pretrained model before it is trained.

    MODEL is a Hugging Face id, a model folder, a GGUF file, an adapter of PEFT or a run. Its chat template,
    end tokens and one answer are shown; its logits, log-probabilities and greedy answers are compared with
    transformers on the same weights; then it is trained for three steps of GRPO and answers ten problems.
    KEY=VALUE overrides a key of the recipe `quickstart`. The exit code is 1 if a check fails, and 2
    if there is no model to check.

    \b
    greenward validate-model Qwen/Qwen2.5-Coder-0.5B-Instruct
    greenward validate-model runs/quickstart
    greenward validate-model my-model model.lora.r=16 model.dtype=bfloat16
    """
    import tempfile

    from greenward.recipes.validate import validate_model

    passed = True
    with tempfile.TemporaryDirectory(prefix="greenward-") as folder:
        for good, line in validate_model(model, output or Path(folder) / "run", overrides):
            word = {True: "passed", False: "FAILED", None: "found"}[good]
            echo(f"{word:6}  {line}")
            passed &= good is not False
    echo(f"Verdict: greenward {'can' if passed else 'CANNOT'} train {model} as it stands here.")
    if not passed:
        raise SystemExit(1)
