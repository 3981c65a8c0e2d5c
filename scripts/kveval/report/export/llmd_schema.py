"""The form of llm-d-benchmark's benchmark report, version 0.2, as far as kveval fills it.

Field names, units and which of them are required follow the schema that llm-d-benchmark publishes (its README section
"v0.2 Format Description"; a report describes one stage of one run). What this writes is a subset: every report that
these models accept is meant to be accepted there. `python -m kveval.report.export.llmd_schema` prints the JSON schema.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
PositiveCount = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class LlmdPart(BaseModel):
    """Unknown keys are refused, as the published schema does."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class LlmdStatistics(LlmdPart):
    """A quantity's distribution; `units` are narrowed where it is used."""

    units: str
    mean: Finite
    min: Finite | None = None
    p50: Finite | None = None
    p90: Finite | None = None
    p99: Finite | None = None
    max: Finite | None = None


class Quantity(LlmdStatistics):
    """A number of something."""

    units: Literal["count"]


class Portion(LlmdStatistics):
    """A share in per cent."""

    units: Literal["percent"]


class Duration(LlmdStatistics):
    """A time."""

    units: Literal["ms", "s"]


class Memory(LlmdStatistics):
    """An amount of memory."""

    units: Literal["GiB"]


class TokenLatency(LlmdStatistics):
    """A time per token."""

    units: Literal["ms/token", "s/token"]


class TokenRate(LlmdStatistics):
    """Tokens per second."""

    units: Literal["tokens/s"]


class RequestRate(LlmdStatistics):
    """Requests per second."""

    units: Literal["queries/s"]


class Power(LlmdStatistics):
    """Electrical power."""

    units: Literal["Watts"]


class RunTime(LlmdPart):
    """When the measurement window was; `duration` as ISO 8601 has it."""

    start: datetime
    end: datetime
    duration: Annotated[str, Field(pattern=r"^PT\d+(\.\d+)?S$")]


class RunIdentity(LlmdPart):
    """Which run this is: `uid` of this report, `eid` of the campaign's cell, `cid` of the machine."""

    uid: str
    eid: str
    cid: str
    time: RunTime
    description: str
    keywords: list[str]


class LlmdMetadata(LlmdPart):
    """What a part of the stack is called; `cfg_id` is a hash of its configuration."""

    schema_version: str = "0.0.1"
    label: str
    cfg_id: str
    description: str | None = None


class Parallelism(LlmdPart):
    """How the model is spread."""

    tp: Count = 1


class Accelerator(LlmdPart):
    """What the model runs on."""

    model: str
    count: Count
    parallelism: Parallelism


class LlmdServedModel(LlmdPart):
    """The model by the name it is served under."""

    name: str


class LlmdEngine(LlmdPart):
    """The inference engine."""

    kind: Literal["inference_engine"] = "inference_engine"
    tool: str
    tool_version: str
    role: Literal["replica"] = "replica"
    replicas: PositiveCount
    model: LlmdServedModel
    accelerator: Accelerator


class Generic(BaseModel):
    """A part without a schema of its own: here, the KV-cache arm. Further keys are allowed."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: Literal["generic"] = "generic"
    tool: str
    tool_version: str


class Native(LlmdPart):
    """Arguments and environment as they were."""

    args: dict[str, Any] | None = None
    envars: dict[str, Any] | None = None
    config: Any | None = None


class Component(LlmdPart):
    """A part of the stack."""

    metadata: LlmdMetadata
    standardized: Annotated[LlmdEngine | Generic, Field(discriminator="kind")]
    native: Native


class Length(LlmdPart):
    """A length that does not vary."""

    distribution: Literal["fixed"] = "fixed"
    value: Count


class Prefix(LlmdPart):
    """Prefixes that conversations share."""

    prefix_len: Length
    num_groups: PositiveCount = 1
    num_users_per_group: PositiveCount = 1
    num_prefixes: PositiveCount


class Turns(LlmdPart):
    """Conversations of several turns."""

    enabled: bool = True
    max_turns: Length


class LoadMetadata(LlmdPart):
    """What the load is called."""

    schema_version: str = "0.0.1"
    cfg_id: str
    description: str | None = None


class LoadStandardized(LlmdPart):
    """The load in terms that all generators share; `stage` is the level's number in the run."""

    tool: Literal["guidellm"] = "guidellm"
    tool_version: str
    source: Literal["random", "unknown"]
    stage: Count
    input_seq_len: Length
    output_seq_len: Length
    prefix: Prefix | None = None
    multi_turn: Turns | None = None
    concurrency: PositiveCount


class Load(LlmdPart):
    """The load."""

    metadata: LoadMetadata
    standardized: LoadStandardized
    native: Native


class LlmdScenario(LlmdPart):
    """What was measured under which load."""

    stack: list[Component]
    load: Load


class LlmdRequests(LlmdPart):
    """How many requests there were in the window, and how they ended."""

    total: Count
    failures: Count
    incomplete: Count


class LlmdLatency(LlmdPart):
    """Latencies of the requests observed.

    `normalized_time_per_output_token` includes the first token, `inter_token_latency` does not.
    """

    time_to_first_token: Duration | None = None
    normalized_time_per_output_token: TokenLatency | None = None
    inter_token_latency: TokenLatency | None = None
    request_latency: Duration | None = None


class Throughput(LlmdPart):
    """Rates over the window, tokens of unfinished requests included."""

    output_token_rate: TokenRate
    total_token_rate: TokenRate | None = None
    request_rate: RequestRate


class LlmdAggregate(LlmdPart):
    """What the requests say."""

    requests: LlmdRequests
    latency: LlmdLatency
    throughput: Throughput


class RequestPerformance(LlmdPart):
    """What users of the stack see."""

    aggregate: LlmdAggregate


class ResourceMetrics(LlmdPart):
    """What the recording says about a part of the stack, over the window."""

    kv_cache_usage: Portion | None = None
    cache_hit_rate: Portion | None = None
    gpu_memory_usage: Memory | None = None
    cpu_memory_usage: Memory | None = None
    gpu_utilization: Portion | None = None
    cpu_utilization: Portion | None = None
    power_consumption: Power | None = None
    running_requests: Quantity | None = None
    waiting_requests: Quantity | None = None
    preemptions: Quantity | None = None


class ComponentObservability(LlmdPart):
    """The recording of one part of the stack."""

    component_label: str
    aggregate: ResourceMetrics


class Observability(LlmdPart):
    """The recordings."""

    components: list[ComponentObservability]


class Results(LlmdPart):
    """What came out."""

    request_performance: RequestPerformance
    observability: Observability


class BenchmarkReport(LlmdPart):
    """One level of one run as a benchmark report."""

    version: Literal["0.2"] = "0.2"
    run: RunIdentity
    scenario: LlmdScenario
    results: Results

    def content(self) -> dict[str, Any]:
        """Return it as plain values; what is not known is left out."""
        content: dict[str, Any] = self.model_dump(mode="json", exclude_none=True)
        return content


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of what kveval writes."""
    schema = BenchmarkReport.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


if __name__ == "__main__":
    print(json.dumps(json_schema(), indent=2))
