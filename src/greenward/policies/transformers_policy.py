"""Any causal language model of `transformers` behind the same interface: slower, same results.

Prompts are still prefilled once per group and finished rows still leave the batch; training rows are
padded and repeat their prompt.

Shape suffixes: B rows, T positions, V vocabulary, P prompt positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from greenward.errors import CheckpointError
from greenward.interruption import check
from greenward.policies import adapter
from greenward.policies.group_batch import GroupBatch
from greenward.policies.policy import Policy
from greenward.policies.sampler import Decoding
from greenward.policies.scoring import score_logits
from greenward.policies.tokenizer import Tokenizer


class TransformersPolicy(Policy):
    """A policy over `AutoModelForCausalLM`. `frozen_copy`, weights and versions are `Policy`'s."""

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, *, dtype: torch.dtype) -> None:
        super().__init__(model, tokenizer, dtype=dtype)
        lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
        for layer in max(lists, key=len, default=()):
            if not layer._forward_pre_hooks:  # a copy has those of its model
                layer.register_forward_pre_hook(_check)

    @staticmethod
    def read(folder: Path) -> Any:
        """The model in `folder`, in float32."""
        try:
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise CheckpointError(
                f"the architecture in {folder / 'config.json'} needs transformers, which is not installed",
                remedy="pip install 'greenward[hf]'",
            ) from error
        try:
            return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
        except Exception as error:  # transformers raises the errors of many libraries
            raise CheckpointError(
                f"expected a causal language model in {folder}, found: {str(error)[:500]}"
            ) from error

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model's config allows; practically none where it names none."""
        config = self.model.config.get_text_config()
        return getattr(config, "max_position_embeddings", None) or 1 << 30

    @property
    def hidden_size(self) -> int:
        return int(self.model.config.get_text_config().hidden_size)

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Trade a second forward pass for activations; only before training starts."""
        if not enabled:
            return
        self.model.gradient_checkpointing_enable()
        # transformers checkpoints in training mode only, and dropout would make the scored policy
        # another one than the sampled policy.
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0

    @torch.no_grad()
    def _write_model(self, folder: Path) -> None:
        tensors = self.published_tensors()
        cast = {name: x.to(self.dtype) if x.is_floating_point() else x for name, x in tensors}
        self.model.save_pretrained(folder, state_dict=cast)

    def published_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights by their names in `transformers`, with an adapter merged."""
        return adapter.merged(self.model, self.model.state_dict())

    @cached_property
    def _decoding(self) -> Decoding:
        return TransformersDecoding(self.model, self.dtype)

    def completion_hidden(self, batch: GroupBatch) -> Tensor:
        out, predicts_BL = self._forward(self.model.base_model, batch)
        return out.last_hidden_state[predicts_BL]  # of states (B, L, E)

    def _score(
        self, batch: GroupBatch, temperature: float, entropy: bool, hidden: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        out, predicts_BL = self._forward(self.model, batch, output_hidden_states=hidden)
        logits_SV = out.logits[predicts_BL]
        scores = score_logits(logits_SV, batch.targets_S, temperature=temperature, entropy=entropy)
        return *scores, out.hidden_states[-1][predicts_BL] if hidden else None

    def _forward(self, model: Any, batch: GroupBatch, **options: Any) -> tuple[Any, Tensor]:
        """What `model` returns for whole rows, and which positions (B, L) predict the scored tokens."""
        lengths_B = batch.completion_mask_BT.sum(1).tolist()
        completions = batch.completion_ids_BT.cpu().numpy()
        rows = [
            np.concatenate((prompt, completion[:length]))
            for prompt, completion, length in zip(batch.row_prompts, completions, lengths_B, strict=True)
        ]
        token_ids_BL, mask_BL = _pad(rows, "right", self.device)
        prompts_B1 = torch.tensor([[len(prompt)] for prompt in batch.row_prompts], device=self.device)
        positions_BL = mask_BL.cumsum(1)  # from 1, and in the padding that of the last token
        predicts_BL = (positions_BL >= prompts_B1) & (positions_BL < positions_BL[:, -1:])
        checkpoints = any(getattr(module, "gradient_checkpointing", False) for module in self.model.modules())
        self.model.train(checkpoints and torch.is_grad_enabled())
        adapter.set_dropout(self.model, torch.is_grad_enabled())
        with computing_in(self.dtype, self.device):
            out = model(input_ids=token_ids_BL, attention_mask=mask_BL, use_cache=False, **options)
        return out, predicts_BL


@dataclass(eq=False)
class TransformersDecoding:
    """The `Decoding` of a `transformers` model: left-padded prompts, its own cache classes."""

    model: Any
    dtype: torch.dtype

    def rows_at_once(self, max_tokens: int) -> int:
        return 256  # how large the cache is depends on the model: a cautious choice

    def start(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int], max_tokens: int) -> Tensor:
        device = next(self.model.parameters()).device
        self.model.eval()  # in training mode, a model with gradient checkpointing gives no key-value cache
        token_ids_NP, self._mask_BP = _pad([np.asarray(prompt) for prompt in prompts], "left", device)
        self._cache: Any = None
        logits_NV = self._forward(token_ids_NP)
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
        with computing_in(self.dtype, token_ids_BT.device):
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


def _check(_layer: nn.Module, inputs: tuple[Any, ...]) -> None:
    """Before a layer computes, and before its gradient is computed."""
    check()
    if inputs and isinstance(inputs[0], Tensor) and inputs[0].requires_grad:
        inputs[0].register_hook(lambda _: check())


def _pad(rows: Sequence[np.ndarray], side: str, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and their mask, padded to one width at the `left` or the `right`."""
    tensors = [torch.from_numpy(row.astype(np.int64)) for row in rows]
    token_ids = pad_sequence(tensors, batch_first=True, padding_side=side)
    mask = pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True, padding_side=side)
    return token_ids.to(device), mask.to(device)


def computing_in(dtype: torch.dtype, device: torch.device) -> AbstractContextManager[None]:
    """Matrix products in `dtype` over float32 weights."""
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
