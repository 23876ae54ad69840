"""Results that are cached from an earlier call instead of computed."""

import tempfile
from pathlib import Path

import torch
from kernels._product import make_operator

# To compare inputs takes a share of a small product's time, so caching pays for larger ones. On a GPU it means waiting
# for the device as well.
MEDIUM, LARGE = 512, 2048

operator = make_operator(
    "kept", "Caches earlier results by address, by value, or by a few numbers of the inputs.", (MEDIUM, LARGE)
)

caught_by = {
    "by_pointer": "cached_result",
    "by_value": "cached_result",
    "by_value_in_place": "shared_result y",
    "by_glance": "cached_result",
    "if_repeated": "cached_result",
    "by_version": "cached_result",
    "in_a_file": "cached_result",
}

KEPT = {}
LAST = {}


def other_size(case, device):
    size = MEDIUM if device == "cpu" else LARGE
    return None if case["n"] == size else "caching pays for another size on this device"


@operator.variant("honest", idea="computes", unsupported=other_size)
def honest(a, b):
    return a @ b


@operator.variant("honest_slower", idea="computes twice", unsupported=other_size)
def honest_slower(a, b):
    return 0.5 * (a @ b) + 0.5 * (a @ b)


@operator.variant("by_pointer", idea="computes once per address", unsupported=other_size)
def by_pointer(a, b):
    key = ("pointer", a.data_ptr(), b.data_ptr())
    if key not in KEPT:
        KEPT[key] = a @ b
    return KEPT[key]


@operator.variant("by_value", idea="computes once per value, and returns copies", unsupported=other_size)
def by_value(a, b):
    key = (float(a.sum()), float(b.sum()))
    if key not in KEPT:
        KEPT[key] = a @ b
    return KEPT[key].clone()


@operator.variant(
    "by_value_in_place", idea="computes once per value, and returns the same tensor", unsupported=other_size
)
def by_value_in_place(a, b):
    key = (float(a.sum()), float(b.sum()))
    if key not in KEPT:
        KEPT[key] = a @ b
    return KEPT[key]


@operator.variant("by_glance", idea="computes once per first and last number", unsupported=other_size)
def by_glance(a, b):
    key = (float(a[0, 0]), float(a[-1, -1]), float(b[0, 0]), float(b[-1, -1]))
    if key not in KEPT:
        KEPT[key] = a @ b
    return KEPT[key].clone()


@operator.variant("if_repeated", idea="skips the work when a buffer has not changed", unsupported=other_size)
def if_repeated(a, b):
    address = (a.data_ptr(), b.data_ptr())
    if address in LAST and torch.equal(LAST[address][0], a) and torch.equal(LAST[address][1], b):
        return LAST[address][2].clone()
    LAST[address] = (a.clone(), b.clone(), a @ b)
    return LAST[address][2].clone()


@operator.variant("by_version", idea="skips the work when nothing was written into a buffer", unsupported=other_size)
def by_version(a, b):
    key = ("version", a.data_ptr(), a._version, b.data_ptr(), b._version)
    if key not in KEPT:
        KEPT[key] = a @ b
    return KEPT[key].clone()


@operator.variant(
    "in_a_file", idea="stores results in files named by a few numbers", devices=("cpu",), unsupported=other_size
)
def in_a_file(a, b):
    folder = LAST.setdefault("folder", tempfile.mkdtemp())
    path = Path(folder, f"{float(a[0, 0])!r}{float(b[-1, -1])!r}")
    if not path.exists():
        torch.from_file(str(path), shared=True, size=a.numel()).copy_((a @ b).flatten())
    return torch.from_file(str(path), shared=False, size=a.numel()).view(a.shape)
