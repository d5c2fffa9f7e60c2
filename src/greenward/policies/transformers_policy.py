"""Any causal language model of `transformers` behind the same interface: slower, same results.

Prompts are still prefilled once per group and finished rows still leave the batch; training rows are
padded and repeat their prompt.

Shape suffixes: B rows, T positions, V vocabulary, P prompt positions.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from greenward.errors import CheckpointError
from greenward.policies.checkpoint import save_folder
from greenward.policies.group_batch import GroupBatch
from greenward.policies.policy import Policy, spread
from greenward.policies.sampler import Decoding
from greenward.policies.scoring import TokenScores, score_logits
from greenward.policies.tokenizer import Tokenizer


class TransformersPolicy(Policy):
    """A policy over `AutoModelForCausalLM`. `frozen_copy`, weights and versions are `Policy`'s."""

    @classmethod
    def read(
        cls, folder: Path, tokenizer: Tokenizer, *, dtype: torch.dtype, device: torch.device
    ) -> TransformersPolicy:
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise CheckpointError(
                f"the architecture in {folder / 'config.json'} needs transformers, which is not installed",
                remedy="pip install 'greenward[hf]'",
            ) from error
        try:
            model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(f"expected a causal language model in {folder}, found: {error}") from error
        return cls(model.to(device), tokenizer, dtype=dtype)

    @property
    def max_positions(self) -> int:
        return max_positions(self.model)

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Trade a second forward pass for activations; only before training starts."""
        if not enabled:
            return
        model: Any = self.model
        model.gradient_checkpointing_enable()
        # transformers checkpoints in training mode only, and dropout would make the scored policy
        # another one than the sampled policy.
        model.train()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    def save(self, folder: Path | str) -> None:
        model: Any = self.model

        def write(draft: Path) -> None:
            model.save_pretrained(draft, state_dict=_cast(model.state_dict(), self.dtype))
            self.tokenizer.save(draft)

        save_folder(Path(folder), write)

    def _frozen_model(self) -> nn.Module:
        return copy.deepcopy(self.model).requires_grad_(False)

    def _decoding(self) -> Decoding:
        return TransformersDecoding(self.model, self.dtype)

    @property
    def hidden_size(self) -> int:
        model: Any = self.model
        return int(model.config.get_text_config().hidden_size)

    def completion_hidden(self, batch: GroupBatch) -> Tensor:
        token_ids_BT, mask_BT, from_S = batch.padded_rows()
        with computing_in(self.dtype, self.device):
            model: Any = self.model
            states = model.base_model(input_ids=token_ids_BT, attention_mask=mask_BT, use_cache=False)
        hidden_BTE: Tensor = states.last_hidden_state
        return hidden_BTE.flatten(0, 1).index_select(0, from_S)

    def completion_logprobs(
        self,
        batch: GroupBatch,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        hidden: bool = False,
    ) -> TokenScores:
        token_ids_BT, mask_BT, from_S = batch.padded_rows()
        with computing_in(self.dtype, self.device):
            model: Any = self.model
            out = model(
                input_ids=token_ids_BT,
                attention_mask=mask_BT,
                use_cache=False,
                output_hidden_states=hidden,
            )
        targets_S = batch.completion_ids_BT[batch.completion_mask_BT]
        logits_SV = out.logits.flatten(0, 1).index_select(0, from_S)
        logprobs_S, entropy_S = score_logits(logits_SV, targets_S, temperature=temperature, entropy=entropy)
        spread_mask_BT = batch.completion_mask_BT
        return TokenScores(
            spread(logprobs_S, spread_mask_BT),
            None if entropy_S is None else spread(entropy_S, spread_mask_BT),
            out.hidden_states[-1].flatten(0, 1).index_select(0, from_S) if hidden else None,
        )


class TransformersDecoding:
    """The `Decoding` of a `transformers` model: left-padded prompts, its own cache classes."""

    # The cache's size is the model's own affair; so many rows at once are a safe choice.
    _ROWS = 256

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.model: Any = model
        self.dtype = dtype
        self.max_positions = max_positions(model)

    def rows_at_once(self, max_tokens: int) -> int:
        return self._ROWS

    def start(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int], max_tokens: int) -> Tensor:
        device = next(self.model.parameters()).device
        width = max(map(len, prompts))
        token_ids = np.zeros((len(prompts), width), dtype=np.int64)
        mask = np.zeros((len(prompts), width), dtype=np.int64)
        for n, prompt in enumerate(prompts):
            token_ids[n, width - len(prompt) :] = prompt
            mask[n, width - len(prompt) :] = 1
        self._mask_BP = torch.from_numpy(mask).to(device)
        self._cache: Any = None
        logits_NV = self._forward(torch.from_numpy(token_ids).to(device))
        row_prompt_B = torch.from_numpy(np.repeat(np.arange(len(prompts)), group_sizes)).to(device)
        self._select(row_prompt_B)
        return logits_NV.index_select(0, row_prompt_B)

    def step(self, token_ids_B: Tensor) -> Tensor:
        self._mask_BP = torch.cat((self._mask_BP, self._mask_BP.new_ones(len(token_ids_B), 1)), dim=1)
        return self._forward(token_ids_B[:, None])

    def keep(self, kept_B: np.ndarray) -> None:
        self._select(torch.from_numpy(kept_B).to(self._mask_BP.device))

    def _select(self, rows: Tensor) -> None:
        self._mask_BP = self._mask_BP.index_select(0, rows)
        self._cache.batch_select_indices(rows)

    def _forward(self, token_ids_BT: Tensor) -> Tensor:
        positions = (self._mask_BP.cumsum(1) - 1).clamp_(min=0)[:, -token_ids_BT.shape[1] :]
        with _in_eval_mode(self.model), computing_in(self.dtype, token_ids_BT.device):
            out = self.model(
                input_ids=token_ids_BT,
                attention_mask=self._mask_BP,
                position_ids=positions,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            )
        self._cache = out.past_key_values
        return out.logits[:, -1]


@contextlib.contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    """In training mode, a model with gradient checkpointing gives no key-value cache."""
    training = model.training
    if training:
        model.eval()
    try:
        yield
    finally:
        if training:
            model.train()


def computing_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[None]:
    """Matrix products in `dtype` over float32 weights."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def max_positions(model: Any) -> int:
    """The longest sequence the model's config allows; practically none where it names none."""
    config = model.config.get_text_config()
    return getattr(config, "max_position_embeddings", None) or 1 << 30


def _cast(state: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: x.to(dtype) if x.is_floating_point() else x for name, x in state.items()}
