"""The structure of a specification against its JSON: nothing is lost, nothing added, nothing else is taken for one."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.config_files import CONFIG

from kveval.campaign.cell import Cell
from kveval.campaign.geometry import Geometry
from kveval.campaign.sizing import CacheSizes
from kveval.campaign.specification import (
    DeploymentSpec,
    ServedModel,
    SidecarSpec,
    Specification,
    SpecificationError,
)
from kveval.configuration.loading import load_config
from kveval.load.trace_file import TraceContent
from kveval.load.workload import (
    Bursts,
    LengthSpread,
    PeakSearch,
    PerLevel,
    SearchedLevels,
    WorkingSet,
    Workload,
)

CAMPAIGNS = sorted((CONFIG / "campaigns").glob("*.yaml"))
COUNTS = st.integers(0, 2**53)
SHARES = st.floats(0, 1)
TEXTS = st.text(max_size=8)
ENVIRONMENTS = st.dictionaries(TEXTS, TEXTS, max_size=3)
WORDS = st.lists(TEXTS, max_size=3).map(tuple)


def of(kind: Any, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generate structures of a kind; strategies for the fields whose type alone does not say it."""
    kinds: dict[Any, st.SearchStrategy[Any]] = {
        **{int: COUNTS, float: SHARES, bool: st.booleans(), str: TEXTS},
        **{str | None: st.none() | TEXTS, int | None: st.none() | COUNTS},
        **{
            float | None: st.none() | SHARES,
            tuple[str, ...]: WORDS,
            tuple[str, ...] | None: st.none() | WORDS,
        },
    }
    fields = msgspec.structs.fields(kind)
    return st.builds(
        kind,
        **{
            field.name: known[field.name] if field.name in known else kinds[field.type]
            for field in fields
        },
    )


POSITIVE = st.integers(1, 2**53)
SECONDS = st.floats(0.1, 1e6)
SPREADS = st.none() | st.builds(
    LengthSpread, stdev=POSITIVE, min=POSITIVE, max=POSITIVE
)
SEARCHES = st.builds(
    lambda **values: PeakSearch.model_validate(values, by_name=True),
    start=st.integers(1, 99),
    stop=st.integers(100, 999),
    resolution=st.floats(0.01, 1),
    seconds=st.none() | SECONDS,
    budget=st.integers(3, 20),
    keep=st.integers(3, 20),
    noise=st.floats(0, 0.9),
)
# Rules for what is written are not rules for what was measured: any values of the fields' types.
WORKLOADS = st.builds(
    Workload.model_construct,
    profile=st.sampled_from(["concurrent", "poisson", "trace", "sweep"]),
    levels=st.lists(POSITIVE, max_size=4).map(tuple)
    | st.builds(SearchedLevels, search=SEARCHES),
    bursts=st.none()
    | st.builds(
        Bursts, factor=st.just(2.0), share=st.floats(0.01, 0.5), mean_s=SECONDS
    ),
    trace=st.none()
    | st.builds(
        TraceContent,
        hash_tokens=POSITIVE,
        tokens=POSITIVE,
        start_s=SECONDS | st.just(0.0),
        sha256=TEXTS,
        requests=st.lists(COUNTS, max_size=3).map(tuple),
    ),
    sweep_size=st.none() | COUNTS,
    seconds=SHARES,
    warmup_s=SHARES,
    request_timeout_s=SHARES,
    prompt_tokens=COUNTS,
    prompt_spread=SPREADS,
    output_tokens=COUNTS,
    output_spread=SPREADS,
    turns=COUNTS,
    prefix_tokens=COUNTS,
    prefix_count=COUNTS
    | st.builds(PerLevel, per_level=POSITIVE)
    | st.builds(WorkingSet, tokens=POSITIVE),
    prime=st.booleans(),
    seed=COUNTS,
)
GEOMETRIES = st.builds(
    Geometry,
    architecture=st.sampled_from(["Qwen3ForCausalLM", "LlamaForCausalLM"]),
    layers=st.integers(1, 100),
    kv_heads=st.just(8),
    head_dim=st.just(128),
    hidden_size=st.just(4096),
    attention_heads=st.just(32),
    intermediate_size=st.integers(1, 10**6),
    vocab_size=st.integers(1, 10**6),
    max_position_embeddings=st.integers(1, 10**6),
    tie_word_embeddings=st.booleans(),
)
MODELS = st.builds(
    ServedModel,
    name=TEXTS,
    hf_id=st.just("owner/model"),
    served_name=TEXTS,
    dtype=st.sampled_from(["bfloat16", "float32"]),
    kv_cache_dtype=st.sampled_from(["auto", "fp8"]),
    quantization=st.sampled_from([None, "awq"]),
    tensor_parallel_size=POSITIVE,
    max_model_len=POSITIVE,
    gpu_memory_utilization=st.none() | SHARES,
    geometry=GEOMETRIES,
    kv_bytes_per_token=COUNTS,
)
PICKERS = st.none() | st.dictionaries(
    TEXTS, TEXTS | COUNTS | st.lists(TEXTS, max_size=2) | st.none(), max_size=3
)
SPECIFICATIONS = of(
    Specification,
    cell=st.builds(Cell, TEXTS, TEXTS, COUNTS),
    model=MODELS,
    versions=ENVIRONMENTS,
    env=ENVIRONMENTS,
    images=ENVIRONMENTS,
    sidecars=st.lists(of(SidecarSpec, env=ENVIRONMENTS), max_size=2).map(tuple),
    budget=of(CacheSizes, split=st.dictionaries(TEXTS, COUNTS, max_size=2)),
    source=st.just(msgspec.UNSET) | TEXTS,
    address=st.just(msgspec.UNSET) | TEXTS,
    fs_dir=st.just(msgspec.UNSET) | st.none() | TEXTS,
    workload=WORKLOADS,
    deployment=st.none()
    | of(
        DeploymentSpec,
        server_labels=ENVIRONMENTS,
        picker=PICKERS,
        router=st.just(msgspec.UNSET) | TEXTS,
    ),
)


@settings(max_examples=100, deadline=None)
@given(SPECIFICATIONS)
def test_what_is_encoded_is_decoded_to_the_same(specification: Specification) -> None:
    content = specification.to_json()
    assert Specification.from_json(content) == specification
    assert Specification.from_json(json.loads(json.dumps(content))).to_json() == content


def _anywhere(specification: Specification) -> Specification:
    """A specification without the place of its trace, which defines nothing."""
    content = specification.workload.content
    if content is None:
        return specification
    return specification.with_workload(trace=content.model_copy(update={"file": ""}))


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.stem)
def test_every_shipped_specification_comes_back_byte_for_byte(path: Any) -> None:
    config = load_config(path, CONFIG)
    for cell in config.cells:
        for specification in (
            config.specification(cell),
            config.pilot_specification(cell),
        ):
            text = json.dumps(specification.to_json())
            again = Specification.from_json(json.loads(text))
            assert again == _anywhere(specification)
            assert json.dumps(again.to_json()) == text
            assert again.measurement_id == specification.measurement_id


@pytest.fixture
def content() -> dict[str, Any]:
    config = load_config(CONFIG / "config.yaml", CONFIG)
    return config.specification(config.cells[0]).to_json()


@pytest.mark.parametrize(
    ("change", "code", "place"),
    [
        ({"protocol": "1"}, "form", "$.protocol"),
        ({"model": {}}, "form", "$.model"),
        (
            {"workload": {"profile": "concurrent", "levels": "all"}},
            "form",
            "levels: Input should be a valid tuple - at `$.workload`",
        ),
        ({"added": 1}, "other_version", ""),
        ({"deployment": None}, "other_version", ""),
    ],
)
def test_what_would_not_be_hashed_to_the_same_id_is_refused(
    content: dict[str, Any], change: dict[str, Any], code: str, place: str
) -> None:
    with pytest.raises(SpecificationError) as error:
        Specification.from_json(content | change)
    assert (error.value.code, place in str(error.value)) == (code, True)


def test_what_only_some_arms_have_is_absent_elsewhere(content: dict[str, Any]) -> None:
    assert not {"fs_dir", "images", "deployment"} & content.keys()
    assert not {"staging_bytes", "split"} & content["budget"].keys()
    assert (
        not {"bursts", "sweep_size", "prompt_spread", "output_spread"}
        & content["workload"].keys()
    )
    assert content["model"]["gpu_memory_utilization"] is None
