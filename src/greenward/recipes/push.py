"""Sends a checkpoint of a run to the Hugging Face Hub: the model, its tokenizer and its card."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from greenward.errors import CheckpointError, ConfigError, RunError
from greenward.reports.model_card import model_card
from greenward.runs.checkpoints import BEST, checkpoint_step, find_checkpoint
from greenward.runs.keys import load_keys
from greenward.user_files import read_file

CARD = "README.md"
# What a model folder on the Hub holds. Everything else in a checkpoint stays here: the trainer's state.
EXPORTED = (
    "config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json",
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "adapter/adapter_config.json", "adapter/adapter_model.safetensors",
)  # fmt: skip


@dataclass(frozen=True)
class Push:
    """What was sent, or would be: the files by their names in the repository, the card, and where it is."""

    repo: str
    private: bool
    checkpoint: Path
    files: dict[str, Path]
    card: str
    url: str | None = None


def push(
    run: str | Path, repo: str, *, checkpoint: str = BEST, private: bool = True, dry_run: bool = False
) -> Push:
    """Upload a checkpoint of `run` ("best", "last" or a name) to the model repository `repo` (owner/name).

    The repository is made if it is not there, private unless told otherwise. `dry_run` sends nothing.
    Raises `ConfigError` without a token or the package, and for a repository that is public already;
    `CheckpointError` for a damaged checkpoint; `RunError` where the Hub refuses or does not answer.
    """
    folder = find_checkpoint(Path(run), checkpoint).resolve()
    found = sorted({file for pattern in EXPORTED for file in folder.glob(pattern)})
    files = {file.relative_to(folder).as_posix(): file for file in found}
    if any(not file.resolve().is_relative_to(folder) for file in found):
        raise CheckpointError(f"{folder} holds a link that leads out of it; only whole checkpoints are sent.")
    written = folder / CARD
    card = (
        read_file(written, within=folder).decode("utf-8", "replace")
        if written.is_file()
        else model_card(Path(run), checkpoint_step(folder))
    )
    planned = Push(repo, private, folder, files, card)
    try:
        from huggingface_hub import CommitOperationAdd, HfApi, get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id
    except ImportError as error:
        raise ConfigError(
            "`greenward push` needs the package huggingface_hub.", remedy="Run `pip install 'greenward[hf]'`."
        ) from error
    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ConfigError(f"--repo {repo}: {error}", remedy="Give it as owner/name.") from error
    if dry_run:
        return planned
    load_keys()
    if get_token() is None:
        raise ConfigError(
            "There is no token for the Hugging Face Hub.",
            remedy="Set HF_TOKEN, in the environment or in .env, or log in by `hf auth login`.",
        )
    api = HfApi()
    try:
        repo = api.create_repo(repo, private=private, exist_ok=True).repo_id
        if private and api.model_info(repo).private is False:
            raise ConfigError(
                f"The repository {repo} is public.",
                remedy="Give another one, or publish on purpose by --public.",
            )
        operations = [CommitOperationAdd(name, str(file)) for name, file in files.items()]
        operations.append(CommitOperationAdd(CARD, card.encode()))
        done = api.create_commit(repo, operations, commit_message=f"Upload {folder.name} of {Path(run).name}")
    except ConfigError:
        raise
    except Exception as error:  # the client raises a dozen unrelated types
        reason = " ".join(str(error).split())[:300]
        raise RunError(
            f"{folder.name} could not be sent to {repo}: {type(error).__name__}: {reason}",
            remedy="Check the connection and what the token may write; nothing on this machine was changed.",
        ) from error
    return Push(repo, private, folder, files, card, done.commit_url)
