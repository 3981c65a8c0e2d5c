"""The types of the catalogues that a campaign chooses from: models, KV-cache arms, workloads, system metrics."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import (
    AfterValidator,
    Field,
    StrictBool,
    StrictInt,
    StringConstraints,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

from kveval.campaign.arm_kinds import ARM_KINDS, ArmKind
from kveval.campaign.geometry import Geometry
from kveval.campaign.metric import Metric, VersionedName
from kveval.campaign.model_config import model_settings
from kveval.campaign.release import Release, Routing
from kveval.campaign.types import Environment, Name, VersionText
from kveval.campaign.verbatim import (
    FILES_FOLDER,
    SIZES,
    KVTransferConfig,
    placeholders,
    text_with_sizes,
    with_sizes,
)
from kveval.host.values import (
    Mistake,
    PositiveInt,
    PositiveNumber,
    Share,
    Strict,
    Text,
)
from kveval.load.workload import Workload


class ModelSettings(Strict):
    """A model as it is declared, and as it is served: every size is computed from its geometry and KV dtype."""

    hf_id: Annotated[str, StringConstraints(pattern=r"^[\w.-]+/[\w.-]+$")]
    """id on the Hugging Face hub"""
    geometry: Geometry = Field(description="the shape, as in its config.json")
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """float32 is for CPUs without 16-bit instructions; the KV cache is then twice as large"""
    kv_cache_dtype: Literal[
        "auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"
    ] = "auto"
    """auto is dtype; quantised weights do not make the KV cache smaller"""
    quantization: Literal["awq", "gptq", "fp8", "mxfp4"] | None = None
    """quantisation of the checkpoint's weights; recorded, never passed to the server"""
    tensor_parallel_size: PositiveInt = Field(1, description="GPUs of one server")
    max_model_len: PositiveInt = Field(description="longest conversation in tokens")


class Model(ModelSettings):
    """A model to serve. Every size is computed from its geometry and KV dtype."""

    path: Annotated[str, StringConstraints(pattern=r"^/\S*$")] | None = None
    """folder of the checkpoint on this host, absolute: weights full reads it instead of asking the hub"""
    gpu_memory_utilization: Share = Field(
        0.9, description="share of the GPU's memory that vLLM may use"
    )
    config: Text | None = None
    """its config.json, a path relative to config/, for the keys above that are not given; read, and not kept"""
    extends: Name | None = None
    """another model, from which every key that is not given here is taken"""
    extra_args: tuple[Text, ...] = Field(
        (), description="more arguments of the server for this model"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_config(cls, values: Any, info: ValidationInfo) -> Any:
        """Take what `config` gives, the path of a config.json, where the entry does not give it itself."""
        if not isinstance(values, dict) or not isinstance(values.get("config"), str):
            return values
        own = {name: value for name, value in values.items() if name != "config"}
        folder = (info.context or {}).get("folder", ".")
        return {**model_settings(Path(folder, values["config"])), **own}

    @model_validator(mode="after")
    def _parallel(self) -> Self:
        shape, ranks = self.geometry, self.tensor_parallel_size
        if not self.divides_among(ranks):
            heads = (
                f"{shape.attention_heads} attention heads and {shape.kv_heads} KV heads"
            )
            raise Mistake(
                f"tensor_parallel_size {ranks} does not divide {heads} evenly",
                "ranks_do_not_divide",
            )
        if self.max_model_len > shape.max_position_embeddings:
            message = f"max_model_len {self.max_model_len} is more than {shape.max_position_embeddings} positions"
            raise Mistake(message, "too_many_positions")
        return self

    def divides_among(self, ranks: int) -> bool:
        """Whether so many ranks can share the model's heads evenly, with KV heads replicated if they are fewer."""
        heads = self.geometry.kv_heads
        return self.geometry.attention_heads % ranks == 0 and (
            heads % ranks == 0 or ranks % heads == 0
        )


class Counter(Strict):
    """A counter of what was loaded or hit, which must rise for the arm to count as active."""

    name: VersionedName
    """its name in /metrics, which may have one label; or {first vLLM version: name}"""
    at_least: PositiveNumber = Field(1.0, description="least increase that counts")
    unit: Literal["tokens", "bytes", "chunks", "blocks", "keys"] = Field(
        description="what it counts; tokens and bytes must also be 0.5 % of the prompt tokens"
    )
    of: Literal["lmcache server"] | None = None
    """the program beside vLLM that has the counter; not needed if LMCache is inside vLLM"""


def _known_kind(arm: str) -> str:
    if arm not in ARM_KINDS:
        raise PydanticCustomError(
            "literal_error",
            "Input should be {expected}",
            {"expected": repr(tuple(ARM_KINDS))},
        )
    return arm


class BuildSource(Strict):
    """The build that an arm runs in place of the installed one: one key, or checkout and commit (docs/builds.md).

    Paths are relative to snakemake's working folder.
    """

    vllm: VersionText | None = Field(None, description="a release of vLLM")
    lmcache: VersionText | None = Field(
        None, description="a release of LMCache, beside the installed server"
    )
    wheel: Text | None = Field(None, description="file of a wheel of vLLM or LMCache")
    checkout: Text | None = None
    """folder of a source tree whose Python files are laid over the installed vLLM or LMCache"""
    commit: (
        Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][\w./~^-]*$")] | None
    ) = None
    """of the checkout, in place of what its working tree has: a commit, tag or branch"""
    environment: Text | None = Field(
        None, description="folder of a virtual environment that has the server"
    )
    packages: Annotated[tuple[Text, ...], Field(min_length=1)] | None = None
    """packages added to the installed server, each NAME==VERSION or the file of a wheel"""

    @model_validator(mode="after")
    def _one(self) -> Self:
        kinds = [name for name in type(self).model_fields if name != "commit"]
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            message = f"names {' and '.join(given) or 'nothing'}; valid is one of {', '.join(kinds)}"
            raise Mistake(
                f"{message} (null removes a key of the extended scenario)",
                "not_one_build",
            )
        if self.commit is not None and self.checkout is None:
            raise Mistake("commit needs checkout", "commit_alone")
        return self


class Companion(Strict):
    """More settings of a program beside the server."""

    args: tuple[Text, ...] = ()
    env: Environment = Field(default_factory=dict)


class Scenario(Strict):
    """A KV-cache arm: how it differs from its baseline, and which counters prove that it was active."""

    title: Text = Field(description="the arm in words, for the report")
    arm: Annotated[str, AfterValidator(_known_kind)]
    """the kind of arm (scripts/kveval/campaign/arm_kinds.py)"""
    form: Literal["connector", "size-flag"] = "connector"
    """native arms: set up by --kv-transfer-config, or by --kv-offloading-size (vLLM 0.14.1 and newer)"""
    store: Name | None = None
    """LMCache's remote store, or the store of llm-d's index: redis or valkey"""
    cpu_tier: StrictBool = Field(
        description="whether cpu_blocks is the size of a tier in host memory; else it is 0"
    )
    baseline: Name | None = Field(
        None,
        description="the scenario that this one is compared with; a baseline has none",
    )
    extends: Name | None = None
    """another scenario, from which every key that is not given here is taken; mappings merge"""
    server: BuildSource | None = None
    """on engine local, the build that it runs in place of the one installed"""
    replicate: StrictBool = False
    """the scenario that it repeats, measured separately and compared with it (A/A)"""
    args: tuple[Text, ...] = Field((), description="more arguments of the server")
    env: Environment = Field(
        default_factory=dict, description="environment variables of the server"
    )
    companions: Mapping[Name, Companion] = Field({})
    """more arguments and environment of the programs beside the server (lmcache, redis, valkey), e.g. LMCache's policy"""
    connector_config: dict[Name, StrictBool | StrictInt | float | str] = Field({})
    """more keys of kv_connector_extra_config, such as eviction_policy"""
    kv_transfer_config: KVTransferConfig | None = None
    """verbatim arms: what --kv-transfer-config is given, with placeholders for the tier's size (docs/arms.md)"""
    native_share: Annotated[Share, Field(lt=1)] | None = None
    """hybrid arms: share of the budget for vLLM's tier, the rest is LMCache's; 0.5 when left out"""
    gpu_memory_utilization: dict[Name, Share] = Field(
        {}, description="by model, in place of the model's own"
    )
    serves: dict[Name, Name] = Field({})
    """by model, another one that is served in its place, with another KV dtype or quantised weights"""
    tensor_parallel_size: PositiveInt | None = Field(
        None, description="in place of the model's own"
    )
    replicas: PositiveInt | None = Field(
        None, description="on a cluster, in place of server.replicas"
    )
    routing: Routing | None = None
    """on a cluster, in place of server.routing"""
    image: Text | None = None
    """on a cluster, image of the server; a baseline with another image makes the comparison confounded"""
    exercised: tuple[Counter, ...] = Field(
        (), description="counters that must rise for the arm to count as active"
    )

    @property
    def kind(self) -> ArmKind:
        """The properties that all arms of its kind share."""
        return ARM_KINDS[self.arm]

    @property
    def keeps_files(self) -> bool:
        """Whether its last tier is files, in a folder of the run."""
        return "files" in self.kind.parts or FILES_FOLDER in placeholders(
            self.kv_transfer_config
        )

    def same_arm(self, other: "Scenario") -> bool:
        """Whether both are the same arm, regardless of build and settings: equal cpu_blocks then mean equal tiers."""
        return (self.arm, self.store, self.cpu_tier) == (
            other.arm,
            other.store,
            other.cpu_tier,
        )

    def with_sizes(self, numbers: Mapping[str, int | float]) -> Self:
        """Return it with the tier's size in place of its placeholders; only verbatim arms have any."""
        if self.kv_transfer_config is None:
            return self
        changes = {
            "kv_transfer_config": with_sizes(self.kv_transfer_config, numbers),
            "args": tuple(text_with_sizes(text, numbers) for text in self.args),
            "env": {
                name: text_with_sizes(text, numbers) for name, text in self.env.items()
            },
        }
        return self.model_copy(update=changes)

    @model_validator(mode="before")
    @classmethod
    def _of_replicate(cls, given: Any) -> Any:
        """Make the scenario that a replicate repeats its baseline, instead of that scenario's baseline."""
        if (
            isinstance(given, Mapping)
            and given.get("replicate") is True
            and given.get("extends") is not None
        ):
            return {**given, "baseline": given["extends"]}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.replicate and self.extends is None:
            raise Mistake(
                "replicate needs extends: the scenario that it repeats",
                "replicate_of_nothing",
            )
        arm, kind = self.arm, self.kind
        if kind.cpu_tier is not None and kind.cpu_tier != self.cpu_tier:
            has = "a" if kind.cpu_tier else "no"
            raise Mistake(
                f"arm {arm} has {has} CPU tier: cpu_tier must be {str(kind.cpu_tier).lower()}",
                "cpu_tier",
            )
        if kind.store == "none" and self.store is not None:
            users = [name for name, other in ARM_KINDS.items() if other.store != "none"]
            raise Mistake(
                f"arm {arm} uses no store; {', '.join(users[:-1])} and {users[-1]} do",
                "store_not_used",
            )
        if self.form != "connector" and kind.parts != {"native"}:
            raise Mistake(f"form {self.form} is only for arm native", "form_of_native")
        if self.native_share is not None and not kind.shares_budget:
            message = f"arm {arm} has no two tiers that share a budget: native_share is only for arm hybrid"
            raise Mistake(message, "share_of_hybrid")
        if kind.store == "required" and self.store is None:
            raise Mistake(f"arm {arm} needs store: redis or valkey", "store_missing")
        if not kind.parts and self.connector_config:
            raise Mistake(f"arm {arm} has no connector to configure", "no_connector")
        if kind.parts and not self.exercised:
            message = "exercised is empty: name a counter that must rise, or nothing proves that the arm was active"
            raise Mistake(message, "exercised_empty")
        return self

    @model_validator(mode="after")
    def _verbatim(self) -> Self:
        config = self.kv_transfer_config
        if (self.arm == "verbatim") != (config is not None):
            message = f"arm {self.arm} and kv_transfer_config do not belong together: it is for arm verbatim, which needs it"
            raise Mistake(message, "transfer_config_alone")
        if config is None:
            return self
        if self.connector_config:
            message = "connector_config adds to what is computed; of arm verbatim write the keys into kv_transfer_config"
            raise Mistake(message, "config_beside_verbatim")
        sized = placeholders([config, self.args, self.env]) & {*SIZES}
        if self.cpu_tier and not sized:
            message = "cpu_tier is true, and nothing takes its size: write {cpu_bytes}, or another placeholder of it"
            raise Mistake(message, "unsized")
        if sized and not self.cpu_tier and not self.keeps_files:
            message = f"cpu_tier is false, and {{{min(sized)}}} would be 0: set cpu_tier: true"
            raise Mistake(message, "size_of_no_tier")
        return self


def _version_range(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        message = f"{text!r} is not a range of versions; valid is for instance '>=0.28,<=0.32.0'"
        raise Mistake(message, "no_range") from None
    return text


VersionRange = Annotated[Text, AfterValidator(_version_range)]
"""A range of versions (PEP 440): comma-separated clauses that all must hold."""


class RaisedIn(Strict):
    """An exception and where it is raised, as in the traceback in the server's log."""

    error: Text = Field(description="its class")
    file: Text = Field(description="end of the file's path")
    function: Text
    line: Text = Field(description="the line of code that raises it")


class KnownDefect(Strict):
    """A defect of released software that occasionally ends a server and is not caused by the arm or the host."""

    title: Text
    link: Annotated[str, StringConstraints(pattern=r"^https://\S+$")] = Field(
        description="the upstream report"
    )
    versions: Annotated[dict[Name, VersionRange], Field(min_length=1)]
    """program: range of its versions with the defect; a server must match all"""
    arguments: tuple[Text, ...] = Field(
        (), description="only servers with one of these arguments have it; empty: all"
    )
    raised_in: RaisedIn
    effect: Text = Field(
        description="how repeating the runs that it ended affects comparisons; for the report"
    )

    def possible(self, versions: Mapping[str, str], argv: Sequence[str]) -> bool:
        """Return whether a server with these arguments and declared versions (by program) has the defect."""
        return all(
            name in versions
            and SpecifierSet(allowed).contains(versions[name], prereleases=True)
            for name, allowed in self.versions.items()
        ) and (
            not self.arguments
            or any(text in argument for text in self.arguments for argument in argv)
        )


class Gpu(Strict):
    """A GPU, for estimates of what a server's device holds and how fast it is."""

    memory_gib: PositiveNumber
    """memory that the driver leaves to programs, GiB: less than the name says"""
    hardware: tuple[Text, ...] = Field(
        default=(),
        description="words that a campaign's hardware must all have to name this GPU",
    )
    small_batches: StrictBool = False
    """whether vLLM takes its defaults for GPUs of less than 70 GiB, whatever the memory"""
    source: Text = Field(description="where memory_gib was read")
    dense_bf16_tflops: PositiveNumber | None = None
    """peak of dense BF16 operations with tensor cores, 10^12 a second; without it, no prefill rate is estimated"""
    pcie: PositiveInt | None = Field(
        default=None,
        description="generation of its PCIe link of 16 lanes to host memory",
    )


class Catalogue(Strict):
    """Everything a campaign can name."""

    models: dict[Name, Model]
    scenarios: dict[Name, Scenario]
    workloads: dict[Name, Workload]
    metrics: dict[Name, Metric]
    releases: dict[Name, Release]
    known_defects: dict[Name, KnownDefect]
    gpus: dict[Name, Gpu]
