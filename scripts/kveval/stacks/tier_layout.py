"""How a cell's server lays out its cache, and what its own tier holds of the cell's conversations.

Models whose layers all keep everything hold in a tier what their bytes per token say; others what the rows say of
kveval.campaign.cache_layout.
"""

from collections.abc import Iterable

from kveval.campaign.cache_layout import CacheLayout
from kveval.campaign.size import Size
from kveval.campaign.sizing import size_for_tokens
from kveval.campaign.specification import Specification
from kveval.campaign.types import BLOCK_TOKENS
from kveval.load import levels as workloads
from kveval.stacks.registry import server_of


def layout_of(specification: Specification) -> CacheLayout:
    """Return the layout of a cell's cache, with what its server keeps of a prompt."""
    server = server_of(specification.versions)
    version = specification.versions[server.name]
    return CacheLayout.from_model(
        specification.model,
        specification.block_size,
        on_cpu=specification.on_cpu,
        retention=server.retention(specification.argv, version),
    )


def in_rows(specification: Specification) -> bool:
    """Whether the cell's own tier holds layers of several kinds, so that rows count and not bytes per token."""
    server = server_of(specification.versions)
    return specification.model.geometry.grouped and server.offloads(specification.argv)


def prompts_of_conversation(
    specification: Specification, level: int
) -> tuple[int, ...]:
    """Return the prompts of a conversation's turns, tokens; of a trace its longest request, as a single turn."""
    workload = specification.workload
    if workload.content is not None or workload.profile in workloads.REPLAYS:
        return (workload.conversation_tokens,)
    first = (
        workloads.prefix_tokens_at(workload, level)
        + workload.document_tokens
        + workload.prompt_tokens
    )
    turn = workload.prompt_tokens + workload.output_tokens
    return tuple(first + number * turn for number in range(workload.turns))


def match_steps(specification: Specification) -> tuple[int, int]:
    """Return the steps, in tokens, in which a prompt is found again on the device and in the server's own tier.

    In the tier windows and states are at multiples of the retention interval, besides the end of each prompt, which a
    later turn goes on from.
    """
    block = specification.block_size
    if not specification.model.geometry.grouped:
        return block, block
    layout = layout_of(specification)
    step = layout.match_tokens
    if specification.workload.content is not None or specification.workload.turns > 1:
        return step, step
    return step, layout.retention.interval_tokens or step


def serves_prefixes(specification: Specification, level: int) -> bool:
    """Whether the tier can serve any of the prefixes that conversations of a level share."""
    prefix = workloads.prefix_tokens_at(specification.workload, level)
    return layout_of(specification).shared_tokens(prefix) > 0


def tokens_in_rows(specification: Specification, size_bytes: int, level: int) -> int:
    """Return the tokens that a tier of `size_bytes` can serve; 0 if it keeps nothing that the load asks for again."""
    workload = specification.workload
    one_turn = workload.content is None and workload.turns == 1
    shared = workloads.prefix_tokens_at(workload, level) > 0
    if one_turn and shared and not serves_prefixes(specification, level):
        return 0
    prompts = prompts_of_conversation(specification, level)
    return layout_of(specification).tokens_within(size_bytes, *prompts)


def device_tokens_in_rows(specification: Specification, reported_tokens: int) -> int:
    """Return the tokens of a load's conversations that a device keeps, of models with layers of several kinds.

    `reported_tokens`: in conversations of full length while they run, as servers report it. What is kept of one that is
    finished is less: its windows without a batch beside them.
    """
    layout, longest = layout_of(specification), specification.model.max_model_len
    server = server_of(specification.versions)
    batch_tokens = server.batch_tokens(specification.argv)
    blocks = reported_tokens * layout.blocks_in_use(longest, batch_tokens) // longest
    level = (specification.workload.given_levels or (1,))[0]
    prompts = prompts_of_conversation(specification, level)
    return layout.tokens_within(blocks * layout.row_bytes, *prompts)


def needed_size(
    specifications: Iterable[Specification], tokens: int, level: int
) -> Size:
    """Return the least size of a tier that holds `tokens` of a level's conversations.

    `specifications`: the cells of one model, in rows if the tier of any of them is.
    """
    cells = list(specifications)
    token_bytes = cells[0].model.kv_bytes_per_token
    of_rows = next(filter(in_rows, cells), None)
    if of_rows is None:
        return size_for_tokens(tokens, token_bytes)
    layout = layout_of(of_rows)
    prompts = prompts_of_conversation(of_rows, level)
    rows = -(-tokens * layout.rows_of_conversation(*prompts) // prompts[-1])
    blocks = -(-rows * layout.row_bytes // (BLOCK_TOKENS * token_bytes))
    return Size(blocks, blocks * BLOCK_TOKENS * token_bytes)
