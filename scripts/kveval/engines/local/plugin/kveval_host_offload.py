"""vLLM's offloading for a server whose device is the CPU itself.

vLLM's stock ``CPUOffloadingSpec`` and ``TieringOffloadingSpec`` refuse to build their worker on a CPU platform,
because that worker copies with CUDA streams. The specs here keep everything else of them - manager, tiers,
eviction, sizing, metrics - and replace the worker by copies between two host tensors. They are loaded by the server
through ``spec_name`` / ``spec_module_path``, vLLM's plug-in point for offloading specs, and import nothing of kveval:
they run in the server's environment. Their names are part of what defines a measurement: one that copies in another way
needs another name.
"""

import time
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from vllm.logger import init_logger
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

# Below vLLM's own logger, whose handlers it inherits: the log is where the engine reads the tier's size from.
logger = init_logger("vllm.kveval_host_offload")


class HostCopyWorker(OffloadingWorker):
    """Copies KV blocks between the device's cache (host memory, here) and the CPU tier, one row per block and tensor.

    A model with several groups of layers has blocks of each group in the same rows: a transfer names the blocks of the
    first group, then those of the second, and so on, and a group's blocks are copied in the tensors of its layers.

    Copies are synchronous: on a host without a GPU there is no second engine that could overlap them with compute.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        tier: list[torch.Tensor],
        region: SharedOffloadRegion | None = None,
    ) -> None:
        self._device = [
            cache.tensor.view(torch.int8).view(-1, cache.page_size_bytes)
            for cache in kv_caches.tensors
        ]
        self._tier = tier
        self._region = region
        # Of each group, the tensors that its layers use, with the bytes of a row that are theirs.
        self._group_pages: list[dict[int, int]] = []
        for refs in kv_caches.group_data_refs:
            pages = {ref.tensor_idx: ref.page_size_bytes for ref in refs}
            self._group_pages.append(pages)
        self._finished: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Copy device blocks into the tier."""
        return self._copy(
            job_id,
            self._device,
            src_spec,
            self._tier,
            dst_spec,
            src_spec.group_sizes,
        )

    def submit_load(
        self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec
    ) -> bool:
        """Copy tier blocks back to the device."""
        return self._copy(
            job_id,
            self._tier,
            src_spec,
            self._device,
            dst_spec,
            dst_spec.group_sizes,
        )

    def get_finished(self) -> list[TransferResult]:
        """Return the copies made since the last call: all that were submitted."""
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: set[int]) -> None:
        """Nothing is ever in flight."""

    def shutdown(self) -> None:
        """Give the shared region back, where the tier lies in one."""
        self._tier = []
        if self._region is not None:
            self._region.cleanup()
            self._region = None

    def _copy(
        self,
        job_id: int,
        source: list[torch.Tensor],
        source_spec: LoadStoreSpec,
        target: list[torch.Tensor],
        target_spec: LoadStoreSpec,
        group_sizes: Sequence[int],
    ) -> bool:
        if not isinstance(source_spec, BlockIDsLoadStoreSpec) or not isinstance(
            target_spec, BlockIDsLoadStoreSpec
        ):
            raise TypeError("transfers are described by block numbers on both sides")
        begin = time.perf_counter()
        rows_from, rows_to = (
            source_spec.block_ids.tolist(),
            target_spec.block_ids.tolist(),
        )
        if len(rows_from) != len(rows_to):
            raise ValueError(
                f"{len(rows_from)} blocks cannot be copied to {len(rows_to)}: one block a chunk is assumed"
            )
        copied_bytes = 0
        bounds = pairwise(accumulate(group_sizes, initial=0))
        for (first, end), pages in zip(bounds, self._group_pages, strict=True):
            for tensor, page_bytes in pages.items():
                # Row by row: torch's indexed copies go through a third tensor, several times as slowly.
                from_array, to_array = source[tensor].numpy(), target[tensor].numpy()
                for row_from, row_to in zip(
                    rows_from[first:end], rows_to[first:end], strict=True
                ):
                    to_array[row_to, :page_bytes] = from_array[row_from, :page_bytes]
                copied_bytes += (end - first) * page_bytes
        self._finished.append(
            TransferResult(
                job_id=job_id,
                success=True,
                transfer_size=copied_bytes,
                transfer_time=time.perf_counter() - begin,
            )
        )
        return True


class RowCopyOffloadingSpec(CPUOffloadingSpec):
    """CPUOffloadingSpec with a worker that needs no GPU."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Build the copying worker once (one block a chunk, one rank)."""
        if self.blocks_per_chunk != 1 or self.config.parallel.world_size != 1:
            raise ValueError("host offloading serves one rank with one block a chunk")
        tier = [
            torch.zeros((self.num_chunks, cache.page_size_bytes), dtype=torch.int8)
            for cache in kv_caches.tensors
        ]
        logger.info(
            "host offloading: CPU tier of %d bytes",
            sum(tensor.nbytes for tensor in tier),
        )
        return HostCopyWorker(kv_caches, tier)


class RowCopyTieringOffloadingSpec(TieringOffloadingSpec):
    """TieringOffloadingSpec with a worker that needs no GPU.

    The CPU tier is vLLM's shared region, which the tiers behind it read and write.
    """

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """Build the copying worker once, over this rank's rows of the shared region."""
        if self.blocks_per_chunk != 1 or self.config.parallel.world_size != 1:
            raise ValueError("host offloading serves one rank with one block a chunk")
        region = SharedOffloadRegion(
            engine_id=self._engine_id,
            num_chunks=self.num_chunks,
            rank=0,
            kv_bytes_per_chunk=self.kv_bytes_per_chunk,
            cpu_page_size=self.cpu_page_size_per_worker,
        )
        tier = [
            region.create_next_worker_view(cache.page_size_bytes)
            for cache in kv_caches.tensors
        ]
        logger.info("host offloading: CPU tier of %d bytes", region.total_size_bytes)
        return HostCopyWorker(kv_caches, tier, region)
