"""Training of a byte-pair tokenizer: which pairs of tokens to merge, one after the other, over strings that are not
split into words.

Tokens are numbered: the symbols that occur, in ascending order, then every merged pair in the order of merging. Each
round merges the most frequent pair of neighbours, from left to right in every string; of equally frequent pairs it
takes the one with the smaller left token, then with the smaller right token. A pair never spans two strings. The result
has a row (left, right) per merge, -1 where no pair remained.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from warpwatch.byte_pairs import BytePairs, from_json
from warpwatch.operator import Case, Cost, DeviceKind, Maker, Operator, SizeQuestion, case

LETTERS = 20
LENGTH = 350
"""Mean number of symbols per string, as in a set of proteins."""

MOTIFS, MOTIF, CELL = 48, 7, 20
"""So many motifs of so many symbols; about every second cell of symbols holds one, which is what makes long merges pay.
"""

BORDER, INSIDE = -1, -2
"""What stands between strings, and where the right half of a merged pair was."""
MOST_RECOUNTED, MOST_COMPARED = 10**8, 5 * 10**6
"""Symbols times merges that variants recount, and symbols on which another library is trained, in about a minute."""
MOST_ON_ONE_THREAD = 5 * 10**7
"""Symbols on which one thread is timed: a bench of more takes over ten minutes."""


def inputs(case: Case, make: Maker) -> dict[str, Any]:
    count = case["symbols"]
    letters = torch.minimum(make.integers(0, LETTERS, count), make.integers(0, LETTERS, count))
    motifs = make.integers(0, LETTERS, MOTIFS, MOTIF)
    cells = count // CELL
    which = torch.minimum(make.integers(0, 2 * MOTIFS, cells), make.integers(0, 2 * MOTIFS, cells))
    place = torch.arange(cells, device=letters.device) * CELL + make.integers(0, CELL - MOTIF + 1, cells)
    place = place[which < MOTIFS]
    letters[place[:, None] + torch.arange(MOTIF, device=letters.device)] = motifs[which[which < MOTIFS]]
    return {
        "symbols": letters.to(torch.uint8),
        "offsets": offsets(case, make, letters.device),
        "merges": case["merges"],
    }


def case_of(symbols: Tensor, offsets: Tensor, merges: int, **_prepared: Any) -> Case:
    return case("i32", symbols=symbols.numel(), merges=merges)


def offsets(case: Case, make: Maker, device: torch.device) -> Tensor:
    """Where strings begin and, last, where they end: about LENGTH apart, the first at 0."""
    count = case["symbols"]
    strings = max(1, count // LENGTH)
    inner = (torch.arange(1, strings, device=device) * count) // strings + make.integers(-100, 101, strings - 1)
    ends = torch.tensor([0, count], device=device)
    return torch.cat([ends[:1], inner, ends[1:]]).long()


def reference(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    """Counts all pairs once, and after each merge the pairs that it changed.

    The variant v2 counts all pairs before each merge instead, which is shorter; tests hold both together.
    """
    alphabet, tokens = bordered(symbols, offsets)
    text = _Text(tokens, alphabet + merges)
    pairs = torch.full((merges, 2), -1, dtype=torch.int32, device=symbols.device)
    for i in range(merges):
        # Of equal counts the first: the smaller left token, then the smaller right one.
        pair = int(text.counts.argmax())
        if text.counts[pair] == 0:
            break
        text.merge(pair, alphabet + i)
        pairs[i] = torch.tensor(divmod(pair, alphabet + merges))
    return pairs


class _Text:
    """Tokens with their neighbours, and of each pair of neighbours its count and the places of its left tokens.

    A pair (left, right) has the number left * size + right. Tokens and places are i32, half of torch's usual size: what
    a merge takes is reading and writing them all over the text.
    """

    def __init__(self, tokens: Tensor, size: int) -> None:
        places = torch.arange(tokens.numel(), dtype=torch.int32, device=tokens.device)
        self.tokens, self.size = tokens, size
        self._number = torch.int32 if size * size < 2**31 else torch.int64
        self.before, self.behind = (places - 1).clamp(min=0), (places + 1).clamp(max=tokens.numel() - 1)
        self.counts = torch.zeros(size * size, dtype=torch.int64, device=tokens.device)
        self.places: dict[int, Tensor] = {}
        self._count(places, 1)

    def _count(self, places: Tensor, sign: int) -> None:
        """Adds or subtracts the pairs that begin at `places`, which ascend; what is added is remembered."""
        left, right = _take(self.tokens, places), _take(self.tokens, _take(self.behind, places))
        inside = ((left != BORDER) & (right != BORDER)).nonzero()[:, 0]
        left, right, places = (_take(column, inside) for column in (left, right, places))
        pairs = left.to(self._number) * self.size + right
        self.counts.index_add_(0, pairs, torch.tensor(sign, device=pairs.device).expand(len(pairs)))
        if sign > 0:
            pairs, order = pairs.sort(stable=True)
            numbers, lengths = torch.unique_consecutive(pairs, return_counts=True)
            split = torch.split(_take(places, order), lengths.tolist())
            self.places |= dict(zip(numbers.tolist(), split, strict=True))

    def merge(self, pair: int, merged: int) -> None:
        left, right = divmod(pair, self.size)
        first = self.places.pop(pair)
        second = _take(self.behind, first)
        first = first[(_take(self.tokens, first) == left) & (_take(self.tokens, second) == right)]
        if left == right:
            # Of overlapping pairs in a row, as in aaaa, the first and every second after it.
            places = torch.arange(first.numel(), device=first.device)
            continues = torch.zeros_like(first, dtype=torch.bool)
            continues[1:] = _take(self.behind, first[:-1]) == first[1:]
            begin = torch.where(continues, 0, places).cummax(0).values
            first = first[(places - begin) % 2 == 0]
        second, before = _take(self.behind, first), _take(self.before, first)
        self._count(_in_order(before, first, second), -1)
        self.tokens[first], self.tokens[second] = merged, INSIDE
        following = _take(self.behind, second)
        self.behind[first], self.before[following] = following, first
        # Every pair here has the new token, so none of them has places yet.
        self._count(_in_order(_take(self.before, first), first), 1)


def _take(values: Tensor, places: Tensor) -> Tensor:
    """values[places], without the copy in i64 that indexing makes of i32 places."""
    return values.index_select(0, places)


def _in_order(*columns: Tensor) -> Tensor:
    """The places in rows of places that ascend from row to row, those that end a row and begin the next one once."""
    places = torch.stack(columns, 1).flatten()
    kept = torch.ones_like(places, dtype=torch.bool)
    kept[1:] = places[1:] != places[:-1]
    return places[kept]


def recounted(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    """Counts all pairs again before each merge."""
    alphabet, tokens = bordered(symbols, offsets)
    pairs = torch.full((merges, 2), -1, dtype=torch.int32, device=symbols.device)
    for i in range(merges):
        pair = most_frequent(tokens, alphabet + i)
        if pair is None:
            break
        tokens = merge(tokens, pair, alphabet + i)
        pairs[i] = torch.tensor(pair)
    return pairs


def bordered(symbols: Tensor, offsets: Tensor) -> tuple[int, Tensor]:
    """(size of the alphabet, all strings' tokens with a BORDER before, between and after them).

    symbols: whole numbers from 0 to 255. Tokens are i32.
    """
    occurs = torch.bincount(symbols, minlength=1) > 0
    numbers = occurs.cumsum(0, dtype=torch.int32) - 1
    text = torch.full((symbols.numel() + offsets.numel(),), BORDER, dtype=torch.int32, device=symbols.device)
    inside = torch.ones_like(text, dtype=torch.bool)
    inside[offsets + torch.arange(offsets.numel(), device=symbols.device)] = False
    text[inside] = numbers[symbols.int()]
    return int(occurs.sum()), text


def most_frequent(tokens: Tensor, size: int) -> tuple[int, int] | None:
    left, right = tokens[:-1], tokens[1:]
    inside = (left != BORDER) & (right != BORDER)
    counts = torch.bincount((left.long() * size + right)[inside], minlength=1)
    best = counts.max()
    return None if best == 0 else divmod(int((counts == best).nonzero()[0]), size)


def merge(tokens: Tensor, pair: tuple[int, int], merged: int) -> Tensor:
    """The tokens with every `pair` replaced; of overlapping ones in a row, as in aaaa, the first and every second after
    it."""
    matches = torch.zeros_like(tokens, dtype=torch.bool)
    matches[:-1] = (tokens[:-1] == pair[0]) & (tokens[1:] == pair[1])
    places = torch.arange(tokens.numel(), device=tokens.device)
    last_other = torch.where(matches, -1, places).cummax(0).values
    replaced = matches & ((places - last_other) % 2 == 1)
    kept = torch.ones_like(replaced)
    kept[1:] = ~replaced[:-1]
    return torch.where(replaced, merged, tokens)[kept]


def cost(case: Case) -> Cost:
    """No arithmetic on numbers; the corpus read once and the merges written.

    So bytes per second are those of the corpus.
    """
    return Cost(0, case["symbols"] + 8 * case["merges"])


def register_native() -> None:
    """Shapes for torch.compile."""

    @torch.library.register_fake("warpwatch::bpe_train")  # type: ignore[untyped-decorator]
    def fake(symbols: Tensor, offsets: Tensor, merges: int, threads: int) -> Tensor:
        return symbols.new_empty((merges, 2), dtype=torch.int32)

    @torch.library.register_fake("warpwatch::bpe_encode")  # type: ignore[untyped-decorator]
    def fake_encode(tokens: Tensor, offsets: Tensor, merges: Tensor, merged: Tensor) -> tuple[Tensor, Tensor]:
        # A row of tokens is never longer than its string; what remains is cut off by the offsets.
        return torch.empty_like(tokens), torch.empty_like(offsets)


QUICK = (case("i32", symbols=20_000, merges=8), case("i32", symbols=5_003, merges=24))
FULL = (
    *QUICK,
    case("i32", symbols=200_000, merges=100),
    case("i32", symbols=1_000_000, merges=50),
    case("i32", symbols=2_000_000, merges=1000),
    case("i32", symbols=16_000_000, merges=1000),
    case("i32", symbols=100_000_000, merges=1000),
)
EDGE = (
    case("i32", symbols=0, merges=3),
    case("i32", symbols=1, merges=2),
    case("i32", symbols=2, merges=2),
    case("i32", symbols=60, merges=80),
    case("i32", symbols=701, merges=0),
)

operator = Operator(
    "bpe_train",
    "Training of a byte-pair tokenizer on unsplit strings.",
    inputs=inputs,
    case_of=case_of,
    reference=reference,
    cost=cost,
    cases={"quick": QUICK, "full": FULL, "edge": EDGE},
    native=register_native,
    timeout_factor=10,
    questions=(
        SizeQuestion(
            "What does native training win over Hugging Face's by the size of the corpus?", "symbols", "hf_tokenizers"
        ),
    ),
)


def recount_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case["symbols"] * case["merges"] <= MOST_RECOUNTED:
        return None
    return "it counts all symbols for every merge, which takes minutes here: see v3"


@operator.variant(
    "v1",
    idea="plain Python: counts all pairs again before each merge",
    devices=("cpu",),
    unsupported=recount_unsupported,
)
def v1(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    ids = {symbol: number for number, symbol in enumerate(sorted(set(symbols.tolist())))}
    everything, ends = [ids[symbol] for symbol in symbols.tolist()], offsets.tolist()
    strings = [everything[begin:end] for begin, end in itertools.pairwise(ends)]
    pairs = []
    for i in range(merges):
        counts = Counter(pair for string in strings for pair in itertools.pairwise(string))
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        strings = [_merged(string, best, len(ids) + i) for string in strings]
        pairs.append(best)
    return _as_rows(pairs, merges)


def _merged(string: list[int], pair: tuple[int, int], merged: int) -> list[int]:
    result: list[int] = []
    i = 0
    while i < len(string):
        if i + 1 < len(string) and (string[i], string[i + 1]) == pair:
            result.append(merged)
            i += 2
        else:
            result.append(string[i])
            i += 1
    return result


def _as_rows(pairs: list[tuple[int, int]], merges: int) -> Tensor:
    rows = [*pairs, *[(-1, -1)] * (merges - len(pairs))]
    return torch.tensor(rows, dtype=torch.int32).view(merges, 2)


@operator.variant(
    "v2",
    idea="v1's count in torch: a histogram of all pairs for every merge",
    devices=("cpu",),
    unsupported=recount_unsupported,
)
def v2(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    return recounted(symbols, offsets, merges)


def one_thread_unsupported(case: Case, _device: DeviceKind) -> str | None:
    return None if case["symbols"] <= MOST_ON_ONE_THREAD else "one thread takes minutes here: see v4"


@operator.variant(
    "v3",
    idea="C++ that corrects only the counts around each merge: positions kept per pair, a lazy heap, one thread",
    native=True,
    devices=("cpu",),
    unsupported=one_thread_unsupported,
)
def v3(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    pairs: Tensor = torch.ops.warpwatch.bpe_train(symbols, offsets, merges, 1)
    return pairs


@operator.variant("v4", idea="v3 with the strings split over torch's threads", native=True, devices=("cpu",))
def v4(symbols: Tensor, offsets: Tensor, merges: int) -> Tensor:
    pairs: Tensor = torch.ops.warpwatch.bpe_train(symbols, offsets, merges, 0)
    return pairs


def tokenizers_unsupported(case: Case, _device: DeviceKind) -> str | None:
    if case["symbols"] > MOST_COMPARED:
        return "it takes minutes here: python bench/bpe.py compares it on larger corpora"
    return None if importlib.util.find_spec("tokenizers") else "tokenizers is not installed: pip install tokenizers"


def as_text(symbols: Tensor, offsets: Tensor, merges: int) -> dict[str, Any]:
    """The strings as Python strings; a character's code is its symbol, so that both sort alike."""
    text, ends = bytes(symbols.tolist()).decode("latin-1"), offsets.tolist()
    return {"strings": [text[begin:end] for begin, end in itertools.pairwise(ends)]}


@operator.variant(
    "hf_tokenizers",
    idea="the trainer of Hugging Face's tokenizers, in Rust on all cores; it breaks ties as we do",
    devices=("cpu",),
    unsupported=tokenizers_unsupported,
    prepare=as_text,
)
def hf_tokenizers(symbols: Tensor, offsets: Tensor, merges: int, strings: list[str]) -> Tensor:
    from tokenizers import Tokenizer, models, trainers

    alphabet = len(set(symbols.tolist()))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.train_from_iterator(strings, trainers.BpeTrainer(vocab_size=alphabet + merges, show_progress=False))
    return _as_rows(from_json(tokenizer.to_str()).merges, merges)


def encode(symbols: Tensor, offsets: Tensor, pairs: BytePairs) -> tuple[Tensor, Tensor]:
    """(tokens of all strings, where each string begins and ends among them), natively.

    ValueError for a symbol that is no token.
    """
    table = torch.full((256,), -1, dtype=torch.int32)
    for character in pairs.alphabet:
        if ord(character) < len(table):
            table[ord(character)] = pairs.numbers[character]
    tokens = table[symbols.long()]
    if bool((tokens < 0).any()):
        raise ValueError(f"the tokenizer does not know {chr(int(symbols[tokens < 0][0]))!r}")
    merges = torch.tensor(pairs.merges, dtype=torch.int32).view(-1, 2)
    merged = torch.tensor(pairs.merged, dtype=torch.int32)
    encoded, ends = torch.ops.warpwatch.bpe_encode(tokens, offsets, merges, merged)
    return encoded[: int(ends[-1])], ends
