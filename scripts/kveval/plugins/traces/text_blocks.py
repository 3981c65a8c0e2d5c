"""Requests of a log with the text of prompts as a trace: the blocks that equal beginnings have in common.

Nobody's tokenizer is at hand, but the log counts the tokens of every prompt. A prompt's own characters are spread over
its own tokens, so that text of any language has its right length. Where a beginning is an earlier prompt's, its blocks
are that one's, and only the rest is spread. Images and the like have tokens, too, that no character counts: they are
taken for what the text leaves over.
"""

import statistics
from array import array
from collections.abc import Iterator
from enum import StrEnum

import zstandard

from kveval.load.trace_file import TraceRow
from kveval.plugins.traces.conversations import RequestArrays
from kveval.plugins.traces.prompt_text import MARK

# Tokenizers make two tokens of a rare character, and one of a long word or of indentation.
_FEWEST_CHARACTERS, _MOST_CHARACTERS = 0.4, 16.0
# Of a token, where no prompt of a log says it.
_ENGLISH_CHARACTERS = 4.0


class Guess(StrEnum):
    """An assumption of parts that cannot be counted: the likely one, or the one by which prompts share least or most."""

    LIKELY = "likely"
    LEAST = "least"
    MOST = "most"


class PromptTexts:
    """The prompts of a log's requests as text, and rows of a trace that share what the texts have in common."""

    def __init__(self, requests: RequestArrays) -> None:
        """Learn from the requests, which have their texts, how many characters a token has."""
        self._requests = requests
        self.unclear = 0
        """how many prompts have parts that cannot be counted"""
        ratios = array("d")
        for text, tokens in self._counted():
            if _is_countable(text, tokens):
                ratios.append(len(text) / tokens)
            else:
                self.unclear += 1
        self.characters_per_token = (
            statistics.median(ratios) if ratios else _ENGLISH_CHARACTERS
        )

    def _counted(self) -> Iterator[tuple[str, int]]:
        unpacker = zstandard.ZstdDecompressor()
        for packed, tokens in zip(
            self._requests.texts, self._requests.prompts.tolist(), strict=True
        ):
            yield unpacker.decompress(packed).decode(errors="surrogatepass"), tokens

    def rows(self, hash_tokens: int, guess: Guess) -> Iterator[TraceRow]:
        """Yield rows of a trace in order of time; `hash_tokens`: tokens of a block."""
        blocks = TextBlocks(hash_tokens)
        moments = zip(
            self._requests.times_s.tolist(),
            self._requests.answers.tolist(),
            self._counted(),
            strict=True,
        )
        for number, (time_s, answer, (text, tokens)) in enumerate(moments):
            spread = self._spread(text, tokens, guess, str(number))
            ids = blocks.of(spread, tokens)
            yield TraceRow(round(1000 * time_s, 3), tokens, answer, ids)

    def _spread(self, text: str, tokens: int, guess: Guess, own: str) -> str:
        """Return the characters over which a prompt's tokens are spread; `own` is a name that no other has.

        What the text leaves over are tokens of images and the like, in equal shares, or of text that the log left out.
        """
        if _is_countable(text, tokens):
            return text
        pieces = text.split(MARK)
        characters = sum(map(len, pieces[::2]))
        room = max(0, round(tokens * self.characters_per_token) - characters)
        others = len(pieces) // 2
        if guess is Guess.LEAST:
            # More characters than so many tokens can have: nobody knows where they differ from those of others.
            begin = pieces[0] if others or room else ""
            return begin + _filled(own, max(room, 1)) + "".join(pieces[2::2])
        if guess is Guess.MOST:
            return pieces[0] + _filled("".join(pieces[1:2]), room)
        if not others:
            return text + _filled(own, room)
        for place in range(1, len(pieces), 2):
            pieces[place] = _filled(pieces[place], room // others)
        return "".join(pieces)


def _is_countable(text: str, tokens: int) -> bool:
    """Return whether a prompt is text as a whole, of as many characters as so many tokens can have."""
    whole = _FEWEST_CHARACTERS <= len(text) / tokens <= _MOST_CHARACTERS
    return whole and MARK not in text


def _filled(name: str, characters: int) -> str:
    """Return so many characters, which begin differently for different names."""
    whole = f"{MARK}{name}{MARK}"
    return (whole * (characters // len(whole) + 1))[:characters]


class TextBlocks:
    """Numbers for the blocks of prompts, equal for equal beginnings, in the order in which prompts are added."""

    def __init__(self, hash_tokens: int) -> None:
        """`hash_tokens`: tokens of a block."""
        self._hash_tokens = hash_tokens
        # Block before, hash of the characters -> block; what texts are is not kept.
        self._numbers: dict[tuple[int, int], int] = {}
        # Block -> the numbers of characters of those that follow it, the most first.
        self._sizes: dict[int, tuple[int, ...]] = {}
        self._count = 0

    def of(self, text: str, tokens: int) -> list[int]:
        """Return the blocks of a prompt whose tokens are spread over these characters, the last for the rest."""
        whole, rest = divmod(tokens, self._hash_tokens)
        blocks: list[int] = []
        last, begin = -1, 0
        while len(blocks) < whole:
            size = self._known_size(last, text, begin)
            if not size:
                break
            last = self._numbers[last, hash(text[begin : begin + size])]
            blocks.append(last)
            begin += size
        tokens_left = tokens - len(blocks) * self._hash_tokens
        per_block = (len(text) - begin) * self._hash_tokens / max(tokens_left, 1)
        fresh = range(1, whole - len(blocks) + 1)
        ends = [begin + round(number * per_block) for number in fresh]
        for end in ends:
            last = self._add(last, text[begin:end])
            blocks.append(last)
            begin = end
        if rest:
            # Only an equal prompt has the block in which a prompt ends.
            key = last, hash((text[begin:], tokens))
            if key not in self._numbers:
                self._numbers[key] = self._fresh()
            blocks.append(self._numbers[key])
        return blocks

    def _known_size(self, last: int, text: str, begin: int) -> int:
        """Return the characters of an earlier prompt's block that go on here, 0 for none."""
        for size in self._sizes.get(last, ()):
            piece = text[begin : begin + size]
            if len(piece) == size and (last, hash(piece)) in self._numbers:
                return size
        return 0

    def _add(self, last: int, piece: str) -> int:
        block = self._fresh()
        if piece:
            self._numbers[last, hash(piece)] = block
            sizes = self._sizes.get(last, ())
            if len(piece) not in sizes:
                self._sizes[last] = tuple(sorted((*sizes, len(piece)), reverse=True))
        return block

    def _fresh(self) -> int:
        self._count += 1
        return self._count - 1
