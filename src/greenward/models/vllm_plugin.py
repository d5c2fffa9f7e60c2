"""Adds a transfer of weights by file, on any device, to vLLM's own processes.

vLLM imports this module through the entry point `vllm.general_plugins` wherever greenward is installed
beside it. The other transfers (NCCL, CUDA IPC) are vLLM's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILE_TRANSFER = "greenward_file"


def register() -> None:
    """Make the transfer by file known to vLLM, once in each process."""
    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
    from vllm.distributed.weight_transfer.factory import WeightTransferEngine, WeightTransferEngineFactory
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclass
    class Nothing(WeightTransferInitInfo):
        """There is nothing to set up."""

    @dataclass
    class Folder(WeightTransferUpdateInfo):
        """A model folder that every worker can read."""

        folder: str

    class FileTransfer(WeightTransferEngine[Nothing, Folder]):
        """Reads the weights of a model folder."""

        init_info_cls = Nothing
        update_info_cls = Folder

        def init_transfer_engine(self, init_info: Nothing) -> None:
            pass

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict) -> None:
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: Folder) -> None:
            files = sorted(Path(update_info.folder).glob("*.safetensors"))
            self.model.load_weights(item for file in files for item in load_file(file).items())

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)
            for module in self.model.modules():
                # On CPUs, an output layer that is tied to the embedding keeps a packed copy of it, which
                # a reload leaves as it was (vLLM 0.32).
                if isinstance(module, ParallelLMHead):
                    module.quant_method.process_weights_after_loading(module)

        def shutdown(self) -> None:
            pass

    if FILE_TRANSFER not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(FILE_TRANSFER, FileTransfer)
