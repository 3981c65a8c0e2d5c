"""A stand-in for pynvml of nvidia-ml-py, as far as kveval asks it: one GPU that tells all, one that tells little."""

# ruff: noqa: N802 - the names are NVML's

from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0


class NVMLError(Exception):
    """The base of its errors."""


class NVMLErrorNotSupported(NVMLError):
    """What a GPU has not."""


A = "GPU-9c1d2a5e-8a0b-4a1c-bb5e-1d7c0f2f6f01"
B = "GPU-0b7a4a4e-1d0c-9f5e-77aa-5f2d3c4b5a02"


class FakeNvml:
    """The module: nvidia-ml-py 13's names and units - milliwatts, bytes, MHz, millijoules; GPU 1 supports the least."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
    NVMLError = NVMLError

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str | bytes:
        return (A, B.encode())[handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=150754820096, used=1000 * (handle + 1), free=0)

    def nvmlDeviceGetClockInfo(self, handle: int, clock: int) -> int:
        return 1755

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._only_first(handle, SimpleNamespace(gpu=97, memory=41))

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._only_first(handle, 689_310)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return self._only_first(handle, 5_000)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 64

    def nvmlDeviceGetCurrPcieLinkGeneration(self, handle: int) -> int:
        return self._only_first(handle, 4)

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return self._only_first(handle, 16)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._only_first(handle, 4)

    def _only_first(self, handle: int, value: Any) -> Any:
        if handle:
            raise NVMLErrorNotSupported("Not Supported")
        return value
