"""Byte-pair tokenizers as files hold them, and small ones trained and applied in plain Python.

The operator `bpe_train` does the same natively, for corpora of any size; tests hold both together.
"""

from __future__ import annotations

import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STAGES = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
OPTIONS = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "ignore_merges")
LARGEST_NUMBER = 2**31 - 1


@dataclass(frozen=True, slots=True)
class BytePairs:
    """A tokenizer.

    numbers: number of each token's text. merges: pairs of numbers in the order of merging. merged: number that each
    pair becomes.
    """

    numbers: dict[str, int]
    merges: list[tuple[int, int]]
    merged: list[int]

    @property
    def alphabet(self) -> str:
        return "".join(sorted((token for token in self.numbers if len(token) == 1), key=self.numbers.__getitem__))

    def encode(self, text: str) -> list[int]:
        """Replaces the pair that was merged earliest, from left to right, until no neighbours are a pair.

        ValueError for a symbol that is no token.
        """
        unknown = next((symbol for symbol in text if symbol not in self.numbers), None)
        if unknown is not None:
            raise ValueError(f"the tokenizer does not know {unknown!r}")
        ranks = {pair: rank for rank, pair in reversed([*enumerate(self.merges)])}
        tokens = [self.numbers[symbol] for symbol in text]
        before, behind = list(range(-1, len(text) - 1)), [*range(1, len(text)), -1]
        places = [(ranks[pair], place) for place, pair in enumerate(itertools.pairwise(tokens)) if pair in ranks]
        heapq.heapify(places)
        while places:
            rank, left = heapq.heappop(places)
            right = behind[left]
            # Places of pairs that are gone stay in the heap: one of their tokens was merged with another neighbour.
            if right < 0 or tokens[left] < 0 or ranks.get((tokens[left], tokens[right])) != rank:
                continue
            tokens[left], tokens[right] = self.merged[rank], -1
            behind[left] = behind[right]
            if behind[left] >= 0:
                before[behind[left]] = left
            for first, second in ((before[left], left), (left, behind[left])):
                if first >= 0 and second >= 0 and (found := ranks.get((tokens[first], tokens[second]))) is not None:
                    heapq.heappush(places, (found, first))
        return [token for token in tokens if token >= 0]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; ValueError for a number that is no token."""
        texts = {number: text for text, number in self.numbers.items()}
        tokens = list(tokens)
        unknown = next((token for token in tokens if token not in texts), None)
        if unknown is not None:
            raise ValueError(f"{unknown} is no token of this tokenizer")
        return "".join(texts[token] for token in tokens)


def train(strings: Sequence[str], merges: int) -> str:
    """The tokenizer of these strings as a file, by the rules of the operator `bpe_train`.

    It counts all pairs again before each merge, which takes about 0.2 s for 10⁶ symbols times merges.
    """
    alphabet = sorted(set().union(*strings))
    ids = {symbol: number for number, symbol in enumerate(alphabet)}
    rows = [[ids[symbol] for symbol in string] for string in strings]
    pairs: list[tuple[int, int]] = []
    while len(pairs) < merges:
        counts = Counter(itertools.chain.from_iterable(map(itertools.pairwise, rows)))
        if not counts:
            break
        pair = min(counts, key=lambda pair: (-counts[pair], pair))
        rows = [_merge(row, pair, len(alphabet) + len(pairs)) for row in rows]
        pairs.append(pair)
    return to_json("".join(alphabet), pairs)


def _merge(row: list[int], pair: tuple[int, int], merged: int) -> list[int]:
    result: list[int] = []
    place = 0
    while place < len(row):
        is_pair = row[place] == pair[0] and place + 1 < len(row) and row[place + 1] == pair[1]
        result.append(merged if is_pair else row[place])
        place += 1 + is_pair
    return result


def to_json(alphabet: str, pairs: Iterable[Sequence[int]]) -> str:
    """A tokenizer as Hugging Face's tokenizers save it in `tokenizer.json`.

    pairs: numbers of tokens, where the characters of `alphabet` come first and then each merged pair. The format
    numbers texts: of two merges that give the same text, both have the number of the first.
    """
    texts, merges = list(alphabet), []
    for left, right in pairs:
        merges.append([texts[left], texts[right]])
        texts.append(texts[left] + texts[right])
    numbers: dict[str, int] = {}
    for number, text in enumerate(texts):
        numbers.setdefault(text, number)
    model = {"type": "BPE", "vocab": numbers, "merges": merges}
    return json.dumps({"version": "1.0", **dict.fromkeys(STAGES), "added_tokens": [], "model": model})


def from_json(text: str) -> BytePairs:
    """The tokenizer in such a file; ValueError when it holds no plain byte-pair model."""
    try:
        given = json.loads(text)
        model = given["model"]
        if model.get("type") != "BPE":
            raise ValueError(f"the file holds a model of type {model.get('type')} and not BPE")
        if steps := [name for name in (*STAGES, "added_tokens") if given.get(name)]:
            raise ValueError(f"the file changes text besides merging pairs: {', '.join(steps)}")
        if options := [name for name in OPTIONS if model.get(name)]:
            raise ValueError(f"the model has options besides its merges: {', '.join(options)}")
        numbers = model["vocab"]
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        merges = [(numbers[left], numbers[right]) for left, right in pairs]
        merged = [numbers[left + right] for left, right in pairs]
        "".join(numbers).encode()
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the file is no tokenizer: {error}") from None
    if bad := [key for key, number in numbers.items() if type(number) is not int or not 0 <= number <= LARGEST_NUMBER]:
        raise ValueError(f"the number of the token {bad[0][:40]!r} is no whole number from 0 to {LARGEST_NUMBER}")
    return BytePairs(numbers, merges, merged)
