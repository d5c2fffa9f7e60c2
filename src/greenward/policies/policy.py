"""The policy: weights and a tokenizer that answer prompts and score answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from greenward.config.sections import ModelConfig, ShapeConfig
from greenward.errors import CheckpointError, ConfigError
from greenward.policies import checkpoint
from greenward.policies.decoder import Decoder, DecoderShape
from greenward.policies.decoding import NativeDecoding
from greenward.policies.engine import Completion, OnGroup, SamplingParams
from greenward.policies.group_batch import GroupBatch
from greenward.policies.sampler import Decoding, Sampler
from greenward.policies.scoring import TokenScores, score_tokens
from greenward.policies.shared_prefix import SharedPrefixAttention
from greenward.policies.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Policy:
    """A causal language model: a rollout engine that also scores completions with gradients.

    Weights are float32 whatever `dtype` says: `dtype` is the type of the arithmetic, as in mixed
    precision. `version` counts the optimizer steps behind the weights; whoever steps raises it.
    """

    def __init__(self, model: nn.Module, tokenizer: Tokenizer, *, dtype: torch.dtype) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.dtype = dtype
        self.version = 0
        self.deterministic = True
        self._sampler: Sampler | None = None

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
        decoder = Decoder(
            DecoderShape(
                vocab_size=tokenizer.vocab_size,
                hidden_size=shape.hidden_size,
                layers=shape.layers,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.hidden_size // shape.heads,
                intermediate_size=shape.intermediate_size,
                max_positions=shape.max_positions,
            ),
            compute_dtype=resolve_dtype(dtype, resolve_device(device)),
        )
        decoder.initialise(torch.Generator().manual_seed(seed))
        return cls(decoder.to(resolve_device(device)), tokenizer, dtype=decoder.compute_dtype)

    @classmethod
    def load(cls, config: ModelConfig) -> Policy:
        """The policy that a recipe's `model` section names by folder or Hugging Face id."""
        if config.id is None:
            raise ConfigError("model.id is not set: Policy.random makes a policy from model.shape")
        folder = checkpoint.resolve(config.id, config.cache_dir)
        return cls.from_folder(
            folder,
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
        """Read a Hugging Face folder: with our decoder where it can, else through transformers."""
        folder = Path(folder)
        tokenizer = Tokenizer.load(folder)
        target = resolve_device(device)
        numbers = resolve_dtype(dtype, target)
        shape = checkpoint.read_shape(folder)
        if shape is None:
            from greenward.policies.transformers_policy import TransformersPolicy

            policy: Policy = TransformersPolicy.read(folder, tokenizer, dtype=numbers, device=target)
        else:
            decoder = Decoder(shape, compute_dtype=numbers)
            checkpoint.load_weights(decoder, folder)
            policy = cls(decoder.to(target), tokenizer, dtype=numbers)
        policy.set_gradient_checkpointing(gradient_checkpointing)
        return policy

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def max_positions(self) -> int:
        """The longest prompt and completion together, in tokens."""
        return self._decoder.shape.max_positions

    @property
    def _decoder(self) -> Decoder:
        assert isinstance(self.model, Decoder)
        return self.model

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Trade a second forward pass for activations of one layer at a time."""
        self._decoder.gradient_checkpointing = enabled

    def save(self, folder: Path | str) -> None:
        """Write a Hugging Face folder, weights in `dtype`; whole or not at all."""
        checkpoint.save(self._decoder, self.tokenizer, Path(folder))

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.model.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.model.named_parameters()

    def state_dict(self) -> dict[str, Any]:
        """The weights, exact (float32), for resuming."""
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        try:
            self.model.load_state_dict(state)
        except RuntimeError as error:
            raise CheckpointError(f"the saved weights are not of this model's shape: {error}") from error

    def frozen_copy(self) -> Policy:
        """A reference policy: the same weights, never trained."""
        frozen = type(self)(self._frozen_model(), self.tokenizer, dtype=self.dtype)
        frozen.version = self.version
        return frozen

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        """Completions for each prompt; see `RolloutEngine`."""
        if self._sampler is None:
            self._sampler = Sampler(self._decoding(), self.tokenizer)
        return self._sampler.sample(
            prompts, group_sizes, params, seed=seed, version=self.version, on_group=on_group
        )

    def sync(self, policy: Policy) -> None:
        """Take over the weights and the version of another policy of the same shape."""
        if policy is not self:
            self.load_state_dict(policy.state_dict())
            self.version = policy.version

    def _frozen_model(self) -> nn.Module:
        return self._decoder.in_compute_dtype()

    def _decoding(self) -> Decoding:
        return NativeDecoding(self._decoder)

    @property
    def hidden_size(self) -> int:
        """The width of the final hidden states."""
        return self._decoder.shape.hidden_size

    def completion_hidden(self, batch: GroupBatch) -> Tensor:
        """The final hidden state from which each completion token is predicted (S, E), differentiable.

        The tokens of all completions follow each other, row by row: `batch.completion_mask_BT` spreads
        what is computed from them over (B, T).
        """
        decoder = self._decoder
        hidden_ME: Tensor = decoder(batch.token_ids_M, SharedPrefixAttention(decoder, batch))
        return hidden_ME.index_select(0, batch.scored_from_S)

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

        def read(hidden_ME: Tensor, unembedding_VE: Tensor) -> TokenScores:
            hidden_SE = hidden_ME.index_select(0, batch.scored_from_S)
            mask_BT = batch.completion_mask_BT
            logprobs_S, entropy_S = score_tokens(
                hidden_SE,
                unembedding_VE,
                batch.completion_ids_BT[mask_BT],
                temperature=temperature,
                entropy=entropy,
            )
            return TokenScores(
                spread(logprobs_S, mask_BT),
                None if entropy_S is None else spread(entropy_S, mask_BT),
                hidden_SE if hidden else None,
            )

        decoder = self._decoder
        scores: TokenScores = decoder(batch.token_ids_M, SharedPrefixAttention(decoder, batch), read)
        return scores


def resolve_device(device: torch.device | str) -> torch.device:
    """`auto` is the first accelerator, else the CPU. Raises `ConfigError` for a device that is not there."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    present = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    try:
        found = torch.device(device)
        is_there = found.type in {name.partition(":")[0] for name in present} and (
            found.index is None or str(found) in present or str(found) == "cpu:0"
        )
    except RuntimeError:  # torch's answer to a name that is no device at all
        is_there = False
    if not is_there:
        build = "with" if torch.version.cuda else "without"
        raise ConfigError(
            f"model.device is {str(device)!r}; torch {torch.__version__}, built {build} CUDA, finds "
            f"{', '.join(present)} here.",
            remedy="Set model.device to one of these, or to auto.",
        )
    return found


def resolve_dtype(dtype: torch.dtype | str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where the processor multiplies it in hardware, else float32."""
    if dtype != "auto":
        return DTYPES[dtype] if isinstance(dtype, str) else dtype
    if device.type == "cuda":
        in_hardware = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        # torch 2.10 cannot tell; float32 is right on every processor.
        capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
        in_hardware = bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return torch.bfloat16 if in_hardware else torch.float32


def spread(values_S: Tensor, mask_BT: Tensor) -> Tensor:
    """(S,) to (B, T), zeros where the mask is False."""
    return values_S.new_zeros(mask_BT.shape).masked_scatter(mask_BT, values_S)
