"""bert_layer: every variant against the oracle, and a whole Hugging Face BERT before and after its products are
swapped."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from kernels import bert_layer as module
from warpwatch.contract.words import Status
from warpwatch.operator import Case, Operator, both_directions
from warpwatch.worker.harness.problem import SeededMaker

from .conftest import ROOT, check_variant, runnable

pytestmark = pytest.mark.usefixtures("operator")

SMALL = module.sized("f32", 2, 9, 2, 8, 20)
PRUNED = module.sized("f64", 2, 9, 2, 8, 20, 75)
CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, (*module.QUICK, *module.EDGE)))
def test_every_variant_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    reply = check_variant(operator, name, case, device)
    # On a GPU, spmm sums a gradient by atomics.
    may_vary = name == "spmm" and device == "cuda" and reply.message.startswith("Nondeterministic")
    assert (reply.status, "" if may_vary else reply.message) == (Status.OK, "")


@pytest.mark.parametrize(("name", "case", "device"), runnable(module.operator, both_directions(SMALL), compiled=True))
def test_torch_compile_is_right(operator: Operator, name: str, case: Case, device: str) -> None:
    assert check_variant(operator, name, case, device).status is Status.OK


def test_the_layer_is_that_of_torchs_encoder() -> None:
    given = module.inputs(module.sized("f64", 3, 7, 3, 4, 10), SeededMaker(1, CPU, "f64"))
    weights = given["weights"]
    theirs = torch.nn.TransformerEncoderLayer(
        12, 3, 10, dropout=0.0, activation="gelu", batch_first=True, dtype=torch.float64
    ).eval()
    names = [module.QUERY, module.KEY, module.VALUE]
    ours = {
        "self_attn.in_proj_weight": torch.cat([weights[f"{name}.weight"] for name in names]),
        "self_attn.in_proj_bias": torch.cat([module.bias(weights, given["key_bias"], name) for name in names]),
    }
    pairs = {module.OUT: "self_attn.out_proj", module.UP: "linear1", module.DOWN: "linear2"}
    pairs |= dict(zip(module.NORMS, ("norm1", "norm2"), strict=True))
    for name, other in pairs.items():
        ours |= {f"{other}.{part}": weights[f"{name}.{part}"] for part in ("weight", "bias")}
    theirs.load_state_dict(ours)
    with torch.no_grad():
        y = theirs(given["x"], src_key_padding_mask=~given["keep"])
    # torch leaves padded tokens out, whose own rows are no result.
    mine = module.reference(**given)
    torch.testing.assert_close(mine[given["keep"]], y[given["keep"]])


def test_a_sparsity_leaves_that_share_of_each_matrix() -> None:
    given = module.inputs(PRUNED, SeededMaker(1, CPU, "f64"))
    for name in module.shapes(PRUNED):
        w = given["weights"][f"{name}.weight"]
        assert int((w != 0).sum()) == module.kept(PRUNED, name) == w.numel() // 4
        assert w[given["patterns"][name]].abs().min() > 0


def test_the_mask_keeps_results_from_padded_tokens() -> None:
    given = module.inputs(SMALL, SeededMaker(3, CPU, "f32"))
    given["keep"] = torch.arange(9) < torch.tensor([[4], [9]])
    changed = given["x"].clone()
    changed[0, 4:] += 1
    before, after = module.by_cublas_matmul(**given), module.by_cublas_matmul(**given | {"x": changed})
    assert torch.equal(before[0, :4], after[0, :4])
    assert not torch.equal(before[0, 4:], after[0, 4:])


SWAP = """
import torch
import warpwatch
from transformers import BertConfig, BertModel

config = BertConfig(vocab_size=97, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40)
torch.manual_seed(1)
model = BertModel(config).eval()
ids = torch.randint(0, 97, (2, 11))
mask = (torch.arange(11) < torch.tensor([[6], [11]])).long()


def run():
    model.zero_grad()
    y = model(input_ids=ids, attention_mask=mask).last_hidden_state
    y.square().sum().backward()
    return y.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


before, gradients = run()
print(warpwatch.swap_bert(model, "cpu"), sum(type(part).__name__ == "SwappedLinear" for part in model.modules()))
seen = []
with torch.profiler.profile() as profiler:
    after, swapped = run()
calls = {event.key: event.count for event in profiler.key_averages()}
print(calls["warpwatch::cublas_matmul"])
torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
assert gradients.keys() == swapped.keys()
for name, gradient in gradients.items():
    torch.testing.assert_close(swapped[name], gradient, rtol=1e-3, atol=1e-4)
print("same")
assert model.config is not config and config._attn_implementation == "sdpa", "the caller's configuration"
assert model.config is model.encoder.layer[0].attention.self.config
model = torch.compile(model, fullgraph=True, backend="aot_eager")
compiled, gradients = run()
torch.testing.assert_close(compiled, after)
for name, gradient in swapped.items():
    torch.testing.assert_close(gradients[f"_orig_mod.{name}"], gradient, rtol=1e-3, atol=1e-4)
print("compiled")
"""


@pytest.mark.nightly
def test_a_whole_bert_is_swapped_by_one_call() -> None:
    """Six linear layers in each of two layers, and the pooler; each layer multiplies twice more in its attention."""
    pytest.importorskip("transformers")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", SWAP], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["13", "13", "17", "same", "compiled"]


def test_costs() -> None:
    forward, backward = (module.cost(c) for c in both_directions(module.sized("f32", 2, 10, 2, 4, 30))[:2])
    assert forward.flops == 2 * 20 * (4 * 64 + 2 * 240) + 4 * 20 * 10 * 8
    assert backward.flops == 2 * forward.flops
    half = module.cost(module.sized("f32", 2, 10, 2, 4, 30, 50))
    assert half.flops == 20 * (4 * 64 + 2 * 240) + 4 * 20 * 10 * 8
