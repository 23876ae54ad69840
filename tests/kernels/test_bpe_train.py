"""bpe_train: every variant against the oracle, the rules on ties, overlaps and borders, and files that tokenizers
reads."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels import bpe_train as module
from warpwatch.byte_pairs import BytePairs, from_json, to_json, train
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator
from warpwatch.worker.harness.problem import CaseProblem

from .conftest import check_variant, runnable, sized

CASES = (*module.QUICK, *module.EDGE)
TRAINERS = [
    name for name, variant in module.operator.variants.items() if not variant.reason_unsupported(CASES[0], "cpu")
]


def corpus(*strings: str) -> tuple[torch.Tensor, torch.Tensor]:
    symbols = torch.tensor([ord(c) for c in "".join(strings)], dtype=torch.uint8)
    return symbols, torch.tensor([0, *map(len, strings)]).cumsum(0)


def trained(operator: Operator, name: str, strings: tuple[str, ...], merges: int) -> list[str]:
    """The merged tokens as text, in order."""
    symbols, offsets = corpus(*strings)
    variant = operator.variants[name]
    inputs: dict[str, Any] = {"symbols": symbols, "offsets": offsets, "merges": merges}
    pairs = variant.function(**inputs, **(variant.prepare(**inputs) if variant.prepare else {}))
    tokens = sorted(set("".join(strings)))
    first = len(tokens)
    tokens += [""] * merges
    for i, (left, right) in enumerate(pairs.tolist()):
        tokens[first + i] = tokens[left] + tokens[right] if left >= 0 else "-"
    return tokens[first:]


@pytest.mark.parametrize(
    ("name", "case", "device"), [p for p in runnable(module.operator, CASES) if p.values[2] == "cpu"]
)
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    assert reply.status is Status.OK, reply.message


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize(
    ("strings", "merges"),
    [
        # The more frequent pair first, then of equal ones the smaller left token, then the smaller right one.
        (("cd", "cd", "ab"), ["cd", "ab"]),
        (("bd", "bc", "ad"), ["ad", "bc", "bd"]),
        # Merged tokens come after all symbols: (c, d) goes before (ab, a), although "aba" sorts before "cd".
        (("aba", "cd", "ab"), ["ab", "cd", "aba"]),
        # Overlapping pairs count each, and are merged from the left.
        (("aaaaa", "bc", "bc", "bc"), ["aa", "bc", "aaa", "aaaaa"]),
        (("aaa",), ["aa", "aaa"]),
        # A merge right beside another: (ab, ab) is a pair, (ab, a) is none any more.
        (("abababab",), ["ab", "abab", "abababab"]),
        # No pair spans two strings, and an empty one changes nothing.
        (("a", "", "b"), ["-", "-"]),
    ],
)
def test_the_rules(operator: Operator, name: str, strings: tuple[str, ...], merges: list[str]) -> None:
    assert trained(operator, name, strings, len(merges)) == merges


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("letters", [2, 3, 20])
def test_a_long_training_agrees_to_the_last_merge(operator: Operator, letters: int, seed: int) -> None:
    """Few letters make long runs, overlaps and ties in plenty.

    Chunks end at other places for other numbers of threads.
    """
    generator = torch.Generator().manual_seed(seed)
    symbols = torch.randint(0, letters, (3000,), generator=generator).to(torch.uint8)
    offsets = torch.cat(
        [torch.tensor([0]), torch.randint(0, 3001, (12,), generator=generator).sort().values, torch.tensor([3000])]
    )
    expected = module.reference(symbols, offsets, 200)
    for threads in (1, 2, 5, 64):
        assert torch.equal(torch.ops.warpwatch.bpe_train(symbols, offsets, 200, threads), expected), threads
    if "hf_tokenizers" in TRAINERS:
        strings = module.as_text(symbols, offsets, 200)["strings"]
        assert torch.equal(module.hf_tokenizers(symbols, offsets, 200, strings), expected)


def test_the_corpus_has_motifs_that_become_tokens(operator: Operator) -> None:
    case = sized("i32", "fwd", symbols=200_000, merges=600)
    data = CaseProblem(operator, operator.variants["v3"], case, torch.device("cpu")).data(1)
    alphabet, merges = data.inputs["symbols"].unique().numel(), module.v3(**data.inputs).tolist()
    lengths = [1] * alphabet
    for left, right in merges:
        lengths.append(lengths[left] + lengths[right])
    assert alphabet == module.LETTERS
    assert lengths.count(module.MOTIF) > module.MOTIFS / 4
    gaps = data.inputs["offsets"].diff()
    assert 0 < int(gaps.min()) < int(gaps.max()) < 2 * module.LENGTH


def test_the_torch_operator_keeps_torchs_rules(operator: Operator) -> None:
    torch.library.opcheck(torch.ops.warpwatch.bpe_train.default, (*corpus("abab", "ba"), 3, 1))


@pytest.mark.parametrize(
    ("symbols", "offsets", "merges"),
    [([1, 2], [0, 3], 1), ([1, 2], [1, 2], 1), ([1, 2], [0, 2, 1, 2], 1), ([1, 2], [0, 2], 70000), ([1, 2], [], 1)],
)
def test_inputs_that_make_no_sense_are_refused(
    operator: Operator, symbols: list[int], offsets: list[int], merges: int
) -> None:
    text, ends = torch.tensor(symbols, dtype=torch.uint8), torch.tensor(offsets, dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"must|more merges"):
        torch.ops.warpwatch.bpe_train(text, ends, merges, 1)


def test_views_are_read_by_their_elements(operator: Operator) -> None:
    symbols, offsets = corpus("abcabc", "abc")
    spread = symbols.repeat_interleave(2)[::2]
    assert torch.equal(module.v3(spread, offsets, 2), module.v3(symbols, offsets, 2))


def test_a_tokenizer_survives_saving_and_loading(operator: Operator, tmp_path: Path) -> None:
    strings = ("MKVLAAMKVL", "AAMKVLMK", "LLMK")
    merges = module.v3(*corpus(*strings), 6)
    path = tmp_path / "tokenizer.json"
    path.write_text(to_json("AKLMV", merges.tolist()), encoding="utf-8")
    pairs = from_json(path.read_text(encoding="utf-8"))
    assert pairs.alphabet == "AKLMV"
    assert pairs.merges == list(map(tuple, merges.tolist()))
    assert pairs.merged == list(range(5, 11))


def test_tokenizers_reads_what_is_saved_and_the_other_way_round(operator: Operator, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    merges = module.v3(*corpus("MKVLAAMKVL", "AAMKVLMK", "LLMK"), 6)
    path = tmp_path / "tokenizer.json"
    path.write_text(to_json("AKLMV", merges.tolist()), encoding="utf-8")
    theirs = tokenizers.Tokenizer.from_file(str(path))
    assert theirs.encode("MKVLA").tokens == ["MKVL", "A"]
    theirs.save(str(path))
    assert from_json(path.read_text(encoding="utf-8")).merges == list(map(tuple, merges.tolist()))


def test_another_model_is_refused() -> None:
    with pytest.raises(ValueError, match="type WordPiece and not BPE"):
        from_json('{"model": {"type": "WordPiece"}}')


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer"),
        ({"added_tokens": [{"id": 0, "content": "<s>"}]}, "added_tokens"),
        ({"model": {"type": "BPE", "unk_token": "?"}}, "unk_token"),
        ({"model": {"type": "BPE", "vocab": {"a": 1.5}, "merges": []}}, "no whole number"),
        ({"model": {"type": "BPE", "vocab": ["a"], "merges": [["a", "a"]]}}, "is no tokenizer"),
    ],
)
def test_a_tokenizer_that_does_more_than_merging_is_refused(change: dict[str, Any], message: str) -> None:
    given = json.loads(to_json("ab", [(0, 1)]))
    with pytest.raises(ValueError, match=message):
        from_json(json.dumps(given | change))


def encoded_by_formula(string: str, pairs: BytePairs) -> list[int]:
    """Of all neighbours that are a pair, the first of those merged earliest, until none is."""
    ranks = {pair: rank for rank, pair in enumerate(pairs.merges)}
    tokens = [pairs.numbers[character] for character in string]
    while True:
        known = [(ranks[pair], place) for place, pair in enumerate(itertools.pairwise(tokens)) if pair in ranks]
        if not known:
            return tokens
        rank, place = min(known)
        tokens[place : place + 2] = [pairs.merged[rank]]


@pytest.mark.parametrize("letters", [2, 3, 20])
def test_encoding_replaces_the_earliest_pair_first(operator: Operator, letters: int) -> None:
    """Few letters make merges whose texts are equal, which share a number in a file."""
    generator = torch.Generator().manual_seed(letters)
    symbols = (torch.randint(0, letters, (4000,), generator=generator) + ord("A")).to(torch.uint8)
    offsets = torch.cat([torch.tensor([0, 0]), torch.randint(0, 4001, (90,), generator=generator).sort().values])
    symbols = symbols[: int(offsets[-1])]
    alphabet = bytes(symbols.unique().tolist()).decode()
    text = to_json(alphabet, module.v3(symbols, offsets, 300).tolist())
    pairs = from_json(text)
    tokens, ends = module.encode(symbols, offsets, pairs)
    strings = module.as_text(symbols, offsets, 0)["strings"]
    rows = [tokens[begin:end].tolist() for begin, end in itertools.pairwise(ends.tolist())]
    assert rows == [encoded_by_formula(string, pairs) for string in strings]
    assert len(tokens) < 0.6 * len(symbols)
    assert rows == [pairs.encode(string) for string in strings]
    assert [pairs.decode(row) for row in rows] == strings
    # What the server trains is the same tokenizer.
    assert train(strings, 300) == text
    if "hf_tokenizers" in TRAINERS:
        theirs = pytest.importorskip("tokenizers").Tokenizer.from_str(text)
        assert rows == [encoding.ids for encoding in theirs.encode_batch(strings)]


def test_a_symbol_that_training_has_not_seen_is_named(operator: Operator) -> None:
    pairs = from_json(to_json("AB", module.v3(*corpus("ABAB"), 1).tolist()))
    with pytest.raises(ValueError, match="does not know 'C'"):
        module.encode(*corpus("ABC"), pairs)


def test_encoding_keeps_torchs_rules_and_refuses_what_does_not_fit(operator: Operator) -> None:
    tokens, offsets = torch.tensor([0, 1, 0, 1], dtype=torch.int32), torch.tensor([0, 4])
    merges, merged = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([2], dtype=torch.int32)
    encode = torch.ops.warpwatch.bpe_encode
    assert encode(tokens, offsets, merges, merged)[0][:2].tolist() == [2, 2]
    for wrong in (
        (tokens.long(), offsets, merges, merged),
        (tokens, offsets + 1, merges, merged),
        (tokens, offsets, merges, merged[:0]),
        (tokens - 1, offsets, merges, merged),
        (tokens, offsets, merges, merged - 9),
    ):
        with pytest.raises(RuntimeError, match="must"):
            encode(*wrong)


def test_costs_are_the_corpus() -> None:
    assert module.cost(sized("i32", "fwd", symbols=1000, merges=10)).bytes == 1080
