"""What nvidia-smi says of GPUs, from texts as its drivers print them, and what a run keeps of it."""

from collections.abc import Sequence

import msgspec
import pytest

from kveval.host.gpu_conditions import GpuWatch, arguments, local_watch, parse, summary
from kveval.store.run_file import GpuConditions

A, B = (
    "GPU-9c1d2a5e-8a0b-4a1c-bb5e-1d7c0f2f6f01",
    "GPU-0b7a4a4e-1d0c-9f5e-77aa-5f2d3c4b5a02",
)
# uuid, name, clocks.sm, clocks.max.sm, enforced.power.limit, power.draw, temperature.gpu, utilization.gpu, reasons
BUSY = f"{A}, NVIDIA H100 80GB HBM3, 1755, 1980, 700.00, 689.31, 64, 100, 0x0000000000000004\n"
COOL = f"{A}, NVIDIA H100 80GB HBM3, 1980, 1980, 700.00, 412.07, 51, 93, 0x0000000000000000\n"
IDLE = (
    f"{A}, NVIDIA H100 80GB HBM3, 345, 1980, 700.00, 71.55, 33, 0, 0x0000000000000001\n"
)
OTHER_IDLE = IDLE.replace(A, B)
# A card for desks tells less, and a driver that cannot reach one says so in its place.
DESK = f"{B}, NVIDIA GeForce RTX 3080, 1920, 2100, [N/A], [N/A], 54, [N/A], 0x0000000000000000\n"
ANCIENT = f"{B}, Tesla K80, 875, 875, 149.00, [Unknown Error], 66, [Not Supported], [Not Supported]\n"
UNKNOWN_FIELD = 'Field "clocks_event_reasons.active" is not a valid field to query.\n\n'
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA"
    " driver is installed and running.\n"
)


def test_a_line_is_a_gpu_and_reasons_are_bits() -> None:
    (sample,) = parse(BUSY)
    assert (sample.uuid, sample.name, sample.clock_mhz, sample.clock_limit_mhz) == (
        A,
        "NVIDIA H100 80GB HBM3",
        1755.0,
        1980.0,
    )
    assert (sample.power_limit_w, sample.power_w, sample.temperature_c) == (
        700.0,
        689.31,
        64.0,
    )
    assert sample.reasons == ("sw_power_cap",)
    (both,) = parse(BUSY.replace("0x0000000000000004", "0x0000000000000048"))
    assert both.reasons == ("hw_slowdown", "hw_thermal_slowdown")
    assert [parse(IDLE)[0].reasons, parse(COOL)[0].reasons] == [(), ()]


@pytest.mark.parametrize("text", [DESK, ANCIENT])
def test_what_a_gpu_does_not_tell_is_missing(text: str) -> None:
    (found,) = summary(parse(text))
    assert found["power_w_mean"] is None
    assert found["clock_mhz_mean"] > 0
    assert found["throttle_reasons"] == []


@pytest.mark.parametrize(
    "text", ["", UNKNOWN_FIELD, NO_DRIVER, "No devices were found\n"]
)
def test_what_is_no_answer_is_no_sample(text: str) -> None:
    assert parse(text) == []


def test_a_gpu_is_summed_up_over_the_samples_in_which_it_worked() -> None:
    (found,) = summary(parse(IDLE + BUSY + COOL + COOL + COOL + OTHER_IDLE))
    conditions = msgspec.convert(found, GpuConditions)
    assert conditions == GpuConditions(
        index=0,
        name="NVIDIA H100 80GB HBM3",
        samples=4,
        clock_mhz_mean=1923.8,
        clock_limit_mhz=1980.0,
        power_limit_w=700.0,
        power_w_mean=481.4,
        temperature_c_max=64.0,
        throttle_reasons=["sw_power_cap"],
        throttle_shares={"sw_power_cap": 0.25},
    )


def test_where_no_gpu_worked_all_are_told() -> None:
    assert [found["index"] for found in summary(parse(IDLE + OTHER_IDLE))] == [0, 1]


class Driver:
    """A driver that fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.asked = failures, 0

    def __call__(self, asked: Sequence[str]) -> str | None:
        self.asked += 1
        return BUSY if self.asked > self.failures else None


def test_what_cannot_be_asked_is_not_asked_for_long() -> None:
    silent = Driver(failures=10)
    watch = GpuWatch(silent)
    for _ in range(10):
        watch.sample()
    assert silent.asked == 3
    assert watch.conditions() == []


def test_a_sample_that_fails_now_and_then_is_left_out() -> None:
    watch = GpuWatch(Driver(failures=2))
    for _ in range(4):
        watch.sample()
    assert len(watch.samples) == 2


def test_the_gpus_that_the_server_may_use_are_asked_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    for named, chosen in {
        "0,1": "0,1",
        A: A,
        "": "",
        "MIG-GPU-1/0/0": "",
        "none": "",
    }.items():
        watch = local_watch({"CUDA_VISIBLE_DEVICES": named})
        assert watch is not None
        assert watch.chosen == chosen
    assert arguments("0,1")[0] == "--id=0,1"
    assert arguments()[0].startswith("--query-gpu=uuid,")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert local_watch({}) is None
