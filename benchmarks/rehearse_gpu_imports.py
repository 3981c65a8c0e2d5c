"""Imports what vLLM loads to serve on an H100, with torch and vLLM told that there is one; nothing is computed.

    LD_LIBRARY_PATH=FOLDER_OF_A_LIBCUDA .server-venv/bin/python benchmarks/rehearse_gpu_imports.py

Names every module that does not load (status 1), and which FlashAttention there is. Written for vLLM 0.26.0.
"""

import importlib
import os
import pkgutil
import sys
from types import SimpleNamespace
from typing import Any

import torch

CAPABILITY = (9, 0)
MEMORY_BYTES = 80 * 2**30
_DEVICE = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    total_memory=MEMORY_BYTES,
    multi_processor_count=132,
    warp_size=32,
    regs_per_multiprocessor=65536,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 * 2**20,
)
_MODULES = (
    "vllm._custom_ops",
    "vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector",
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.model_loader.dummy_loader",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.v1.core.sched.scheduler",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.kv_offload.cpu.gpu_worker",
    "vllm.v1.kv_offload.cpu.spec",
    "vllm.v1.sample.sampler",
    "vllm.v1.structured_output",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.worker.gpu_worker",
    "lmcache.integration.vllm.lmcache_mp_connector",
    "lmcache.v1.multiprocess.server",
)
_PACKAGES = ("vllm.v1.worker.gpu", "vllm.v1.metrics", "vllm.v1.engine")


def pretend_gpu() -> None:
    """Have torch and vLLM answer as on an H100."""
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: 1
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_capability = lambda device=None: CAPABILITY
    torch.cuda.get_device_properties = lambda device=None: _DEVICE
    platforms: Any = importlib.import_module("vllm.platforms")
    cuda: Any = importlib.import_module("vllm.platforms.cuda").NonNvmlCudaPlatform
    interface: Any = importlib.import_module("vllm.platforms.interface")
    capability = interface.DeviceCapability(*CAPABILITY)
    cuda.get_device_capability = classmethod(lambda *_, **__: capability)
    cuda.get_device_name = classmethod(lambda *_, **__: _DEVICE.name)
    cuda.get_device_total_memory = classmethod(lambda *_, **__: MEMORY_BYTES)
    platforms._current_platform = cuda()


def modules() -> list[str]:
    """Return the names of the modules, those of whole packages included."""
    names = list(_MODULES)
    for package in _PACKAGES:
        path = importlib.import_module(package).__path__
        names += [module.name for module in pkgutil.walk_packages(path, f"{package}.")]
    return names


def main() -> int:
    """Import all; return the exit status."""
    os.environ |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_USE_DEEP_GEMM": "0"}
    pretend_gpu()
    failures = 0
    names = modules()
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001  (all that do not load are named)
            failures += 1
            print(f"{name}: {type(error).__name__}: {error}")
    flash: Any = importlib.import_module("vllm.vllm_flash_attn.flash_attn_interface")
    print(f"{len(names)} modules, {failures} do not load")
    print(f"FlashAttention 3: {flash.FA3_AVAILABLE}; 2: {flash.FA2_AVAILABLE}")
    return int(failures > 0 or not flash.FA3_AVAILABLE)


if __name__ == "__main__":
    sys.exit(main())
