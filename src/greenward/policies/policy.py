"""The policy: weights and a tokenizer that answer prompts and score answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from greenward.config.sections import LoraConfig, ModelConfig, ShapeConfig
from greenward.errors import CheckpointError, ConfigError
from greenward.policies import adapter, checkpoint
from greenward.policies.decoder import Decoder, DecoderShape, pad_to_bucket
from greenward.policies.decoding import NativeDecoding
from greenward.policies.devices import resolve_device, resolve_dtype
from greenward.policies.flex import training_attention
from greenward.policies.group_batch import GroupBatch
from greenward.policies.sampler import Decoding, Sampler
from greenward.policies.scoring import TokenScores, score_tokens
from greenward.policies.tokenizer import Tokenizer


class Policy(Sampler):
    """A causal language model: a rollout engine that also scores completions with gradients.

    Weights are float32 whatever `dtype` says: `dtype` is the type of the arithmetic, as in mixed
    precision. `version` counts the optimizer steps behind the weights; whoever steps raises it.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, *, dtype: torch.dtype) -> None:
        self.model: Any = model  # a `Decoder`, or a model of `transformers` in a subclass
        self.tokenizer = tokenizer
        self.dtype = dtype
        self.version = 0

    @classmethod
    def random(
        cls,
        shape: ShapeConfig,
        tokenizer: Tokenizer,
        *,
        seed: int,
        dtype: torch.dtype | str = "float32",
        device: torch.device | str = "auto",
    ) -> Policy:
        """A Llama-shaped decoder from random weights, as large as the tokenizer's vocabulary needs."""
        shared = shape.model_dump(exclude={"vocab_size"})
        sizes = DecoderShape(
            vocab_size=tokenizer.vocab_size, head_dim=shape.hidden_size // shape.heads, **shared
        )
        target = resolve_device(device)
        decoder = Decoder(sizes, compute_dtype=resolve_dtype(dtype, target))
        decoder.initialise(torch.Generator().manual_seed(seed))
        return cls(decoder.to(target), tokenizer, dtype=decoder.compute_dtype)

    @classmethod
    def load(cls, config: ModelConfig) -> Policy:
        """The policy that a recipe's `model` section names by folder or Hugging Face id."""
        if config.id is None:
            raise ConfigError("model.id is not set: Policy.random makes a policy from model.shape")
        return cls.from_folder(
            checkpoint.resolve(config.id, config.cache_dir, offline=config.offline),
            dtype=config.dtype,
            device=config.device,
            gradient_checkpointing=config.gradient_checkpointing,
        )

    @classmethod
    def from_folder(
        cls,
        folder: Path | str,
        *,
        dtype: torch.dtype | str = "float32",
        device: torch.device | str = "auto",
        gradient_checkpointing: bool = False,
    ) -> Policy:
        """Read a Hugging Face folder: with our decoder where it can, else through transformers.

        An adapter in PEFT's format is merged into its base.
        """
        folder = Path(folder)
        base = checkpoint.base_folder(folder)
        tokenizer = Tokenizer.load(checkpoint.holding("tokenizer.json", folder))
        target = resolve_device(device)
        numbers = resolve_dtype(dtype, target)
        shape = checkpoint.read_shape(base or folder)
        merged = None if base is None else adapter.read_merged(folder, base)
        if shape is None:
            from greenward.policies.transformers_policy import TransformersPolicy

            model = TransformersPolicy.read(folder) if merged is None else merged
            policy: Policy = TransformersPolicy(model.to(target), tokenizer, dtype=numbers)
        else:
            if merged is None:
                checkpoint.demand_weights(shape, folder)
            decoder = Decoder(shape, compute_dtype=numbers)
            if merged is None:
                checkpoint.load_weights(decoder, folder)
            else:
                checkpoint.copy_weights(decoder, merged.state_dict())
            policy = cls(decoder.to(target), tokenizer, dtype=numbers)
        policy.set_gradient_checkpointing(gradient_checkpointing)
        return policy

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def max_positions(self) -> int:
        return self.model.shape.max_positions

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Trade a second forward pass for activations of one layer at a time."""
        self.model.gradient_checkpointing = enabled

    def casting_once(self) -> AbstractContextManager[None]:
        """Inside, weights do not change and are cast to `dtype` once, where the decoder is ours."""
        return self.model.casting_once() if isinstance(self.model, Decoder) else nullcontext()

    def add_adapter(self, config: LoraConfig, *, seed: int, base: str | None = None) -> None:
        """Train an adapter from now on, and none of the weights; see `adapter.add_adapter`."""
        adapter.add_adapter(self.model, config, seed=seed, dtype=self.dtype, base=base)

    def save(self, folder: Path | str) -> None:
        """Write a Hugging Face folder, weights in `dtype`; whole or not at all.

        An adapter is merged into the weights, and also written as it is to the folder `adapter` inside.
        """

        def write(draft: Path) -> None:
            self._write_model(draft)
            self.tokenizer.save(draft)
            if adapter.is_adapted(self.model):
                adapter.save_adapter(self.model, draft / adapter.FOLDER)

        checkpoint.save_folder(Path(folder), write)

    @torch.no_grad()
    def _write_model(self, folder: Path) -> None:
        checkpoint.write(folder, self.model, self.published_tensors(), self.tokenizer)

    def published_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """The weights under the names that Hugging Face uses, one after the other, with an adapter merged."""
        return adapter.merged(self.model, checkpoint.published_tensors(self.model))

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def state_dict(self) -> dict[str, Any]:
        """The weights, exact (float32), for resuming; of an adapted model those of the adapter."""
        model = self.model
        return adapter.adapter_state(model) if adapter.is_adapted(model) else model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            if adapter.is_adapted(self.model):
                adapter.load_adapter_state(self.model, state)
            else:
                self.model.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"the saved weights are not of this model's shape: {error}") from error

    @property
    def saves_exactly(self) -> bool:
        """Whether `load_weights` restores from a folder of `save` just what `state_dict` gave."""
        is_decoder = isinstance(self.model, Decoder) and not adapter.is_adapted(self.model)
        return is_decoder and self.dtype == torch.float32

    def load_weights(self, folder: Path | str) -> None:
        """Restore the weights of a decoder without an adapter from a folder that `save` wrote."""
        checkpoint.load_weights(self.model, Path(folder))

    def trainable_copy(self) -> Policy:
        """The same weights, to be trained apart; an adapter has a copy, its frozen weights are shared."""
        return self._copy(adapter.shared_copy(self.model))

    def frozen_copy(self) -> Policy:
        """A reference policy: the same weights, never trained; frozen weights are shared as above."""
        if isinstance(self.model, Decoder) and not adapter.is_adapted(self.model):
            return self._copy(self.model.in_compute_dtype())
        return self._copy(adapter.shared_copy(self.model).requires_grad_(False))

    def _copy(self, model: nn.Module) -> Policy:
        copied = type(self)(model, self.tokenizer, dtype=self.dtype)
        copied.version = self.version
        return copied

    def sync(self, policy: Policy) -> None:
        """Take over the weights and the version of another policy of the same shape."""
        if policy is not self:
            self.load_state_dict(policy.state_dict())
            self.version = policy.version

    @cached_property
    def _decoding(self) -> Decoding:
        return NativeDecoding(self.model)

    @property
    def hidden_size(self) -> int:
        return self.model.shape.hidden_size

    def completion_hidden(self, batch: GroupBatch) -> Tensor:
        """The final hidden state from which each completion token is predicted (S, E), differentiable.

        The tokens of all completions follow each other, row by row: `batch.spread` lays out what is
        computed from them over (B, T).
        """
        attention = training_attention(self.model, batch)
        hidden_UE: Tensor = self.model(batch.token_ids_M, attention, predicting_U=batch.predicting_U)
        return hidden_UE.index_select(0, batch.scored_from_S)

    def completion_logprobs(
        self,
        batch: GroupBatch,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        hidden: bool = False,
    ) -> TokenScores:
        """Log-probability of every completion token (B, T), and where asked for entropy and hidden states.

        The former two are of softmax(logits / temperature) and 0 in the padding; the latter are those of
        `completion_hidden`, from the same forward pass. All are differentiable.
        """
        logprobs_S, entropy_S, hidden_SE = self._score(batch, temperature, entropy, hidden)
        return TokenScores(
            batch.spread(logprobs_S),
            None if entropy_S is None else batch.spread(entropy_S),
            hidden_SE,
        )

    def _score(
        self, batch: GroupBatch, temperature: float, entropy: bool, hidden: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Log-probabilities, entropies and hidden states of the scored tokens."""

        def read(hidden_UE: Tensor, unembedding_VE: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
            from_D, targets_D, distinct_S = batch.distinct
            logprobs_D, entropy_D = score_tokens(
                hidden_UE.index_select(0, pad_to_bucket(from_D, hidden_UE.dtype)),
                unembedding_VE,
                pad_to_bucket(targets_D, hidden_UE.dtype),
                temperature=temperature,
                entropy=entropy,
            )
            return (
                logprobs_D.index_select(0, distinct_S),
                None if entropy_D is None else entropy_D.index_select(0, distinct_S),
                hidden_UE.index_select(0, batch.scored_from_S) if hidden else None,
            )

        attention = training_attention(self.model, batch)
        return self.model(batch.token_ids_M, attention, read, batch.predicting_U)
