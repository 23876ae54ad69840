"""Makes the example data of one device: operators of kernels/ at five commits, and the table of bench/.

    make examples DEVICE=cuda:0,cuda:1
    python bench/examples.py --device cuda:0 [--operators kron,gru] [--output FILE.wwb] [--table FILE.md]

Every part is a `warpwatch run` with a results file of its own in --parts, so a run that was interrupted goes on with
the first part that has none. Parts of the newest commit: checks and benches of the cases of the table and of the sweeps
over a size that an operator's page answers a question from, and a trace of each variant in the first case. Parts of
four older commits, those that changed the native code of most operators: checks and benches of the cases of the table.
Each device takes the next part as soon as it is free. In the end all parts are joined into one file, and the table is
printed from that file, so that pages and table cannot differ.

Each part prints its minutes, and how many are left at this pace. --dry-run lists the parts.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.table import read, tables
from warpwatch import __version__
from warpwatch.bundle import BundleReader, BundleWriter
from warpwatch.git import CommitInfo

ROOT = Path(__file__).parents[1]
OLDER_COMMITS = 4
AUTHOR = "Warpwatch"
"""Of all commits: shipped results name no person."""
GPU = {
    "attention": ["b=4,h=16,q=2048,k=2048,d=64,causal=0,bf16,fwd"]
    + [f"b=4,h=16,q=2048,k=2048,d=128,causal=1,bf16,{way}" for way in ("fwd", "bwd")],
    "bert_block": [f"b=16,s=512,h=16,d=64,bf16,{way}" for way in ("fwd", "bwd")],
    "bert_layer": [f"b=8,s=128,h=12,d=64,ffn=3072,sparsity=0,f32,{way}" for way in ("fwd", "bwd")],
    "causal_conv": [f"batch=32,channels=768,length=768,tf32,{way}" for way in ("fwd", "bwd")]
    + ["batch=8,channels=1024,length=1024,f32,fwd"],
    "causal_conv_short": [
        f"batch=4,channels=4096,length=2048,width=4,bias=1,silu=1,bf16,{way}" for way in ("fwd", "bwd")
    ],
    "concat": ["rows=1x1,parts=256x512,consumer=1536,f32,fwd", "rows=1x128,parts=256x512,consumer=0,f32,fwd"]
    + [f"rows=128,parts=256x512x512,consumer=5893,f32,{way}" for way in ("fwd", "bwd")],
    "cublas_matmul": ["a=4096x4096,b=4096x4096,ta=0,tb=0,bf16,fwd"]
    + [f"a=64x512x512,b=64x512x512,ta=0,tb=1,bf16,{way}" for way in ("fwd", "bwd")],
    "embedding": ["rows=50257,width=768,ids=8x1024,bf16,bwd,zipf"],
    "grouped_matmul": [
        f"tokens=4096,n={n},k=2048,experts={experts},x={x},w={w},bf16,fwd"
        for n, experts in ((4096, 8), (1408, 64))
        for x, w in (("bf16",) * 2, ("e4m3-row",) * 2, ("e4m3-1x128", "e4m3-128x128"))
    ],
    "gru": [f"time=32,batch=128,input=256,hidden=512,layers=1,f32,{way}" for way in ("fwd", "bwd")]
    + ["time=13,batch=1,input=256,hidden=512,layers=1,f32,fwd"],
    "gru_step": [f"batch=1,embedding=256,hidden=512,vocab=5893,f32,{way}" for way in ("fwd", "bwd")]
    + ["batch=128,embedding=256,hidden=512,vocab=5893,f32,fwd"],
    "int4_linear": [f"rows={rows},in=4096,out=4096,w=i4g128,x=bf16,bf16,fwd" for rows in (1, 128)],
    "int8_matmul": [f"m={m},n=4096,k=4096,a=i8-row,b=i8-row,bf16,fwd" for m in (17, 4096)],
    "kron": [f"batch=32,factors=128x128,{how}" for how in ("f32,fwd", "f32,bwd", "f64,fwd", "tf32,fwd")]
    + ["batch=32,factors=8x8x8x8,f32,fwd", "batch=1024,factors=64x64,f32,fwd"]
    + [f"batch=1024,factors=32x32x32,f32,{way}" for way in ("fwd", "bwd")],
    "kv_attention": [
        f"batch={batch},heads=32,d=128,kv_heads=8,length={length},page=256,kv={kv},bf16,fwd"
        for batch, length in ((1, 16384), (64, 4096))
        for kv in ("bf16", "e4m3-tensor")
    ],
    "launch": [f"{call}=1,f32,fwd" for call in ("empty", "add")]
    + [f"{copy}=16777216,f32,fwd" for copy in ("h2d", "d2h", "d2d")],
    "linear_vocab": [
        f"batch={rows},parts=256x512x512,vocab=5893,f32,{way}" for rows in (1, 128) for way in ("fwd", "bwd")
    ],
    "lottery": ["samples=256,features=16,hidden=32,steps=100,rounds=11,percent=80,f32,fwd"],
    "magnitude_prune": [f"size=4096x4096,percent=10,f32,{way}" for way in ("fwd", "bwd")],
    "matmul": [f"m=4096,k=4096,n=4096,{how}" for how in ("f32,fwd", "bf16,fwd", "bf16,bwd")],
    "quantize": [
        f"rows=8192,columns=8192,y={y},transposed={copy},bf16,fwd"
        for y, copy in (("e4m3-row", 0), ("e4m3-1x128", 1), ("mxfp8", 0), ("nvfp4", 0))
    ],
    "rope": ["batch=1,length=2048,heads=32x8,dim=128,bf16,fwd"]
    + [f"batch=1,length=8192,heads=32x8,dim=128,bf16,{way}" for way in ("fwd", "bwd")],
    "scaled_matmul": [
        f"m=4096,n=4096,k=4096,a={a},b={b},bf16,fwd"
        for a, b in (("e4m3-tensor",) * 2, ("e4m3-row",) * 2, ("e4m3-1x128", "e4m3-128x128"))
    ],
    "seq2seq": ["source=13,batch=1,embedding=256,hidden=512,vocab=7853x5893,steps=25,f32,fwd"],
    "seq2seq_train": ["source=13,target=13,batch=8,layers=1,embedding=256,hidden=512,vocab=7853x5893,f32,step"],
    "sparse24": [f"tokens={tokens},n=4096,k=4096,train=0,f16,fwd" for tokens in (1, 4096)]
    + ["tokens=4096,n=4096,k=4096,train=0,bf16,fwd", "tokens=8192,n=8192,k=8192,train=0,f16,fwd"],
    "sparse24_step": ["tokens=4096,n=4096,k=4096,across=0,f16,fwd"],
    "spmm": [f"size=4096x4096,n=256,sparsity=90,f32,{way}" for way in ("fwd", "bwd")],
    "square": [f"size=4096x4096,f32,{way}" for way in ("fwd", "bwd")],
    "stencil1d": ["n=16777216,f32,bwd", "n=67108864,f32,fwd"],
    "vector_add": ["n=16777216,f32,fwd"],
}
"""Cases of the table, which older commits are measured on and traces are recorded of, by operator."""
CPU = {"bpe_train": ["symbols=200000,merges=100,i32,fwd"]}
"""Operators that have no variant for a GPU: measured on the host of the GPU."""
TABLED = GPU | CPU
SWEPT = {
    "bert_layer": [f"b=8,s=128,h=12,d=64,ffn=3072,sparsity={share},f32,fwd" for share in (50, 90, 95)],
    "bpe_train": [f"symbols={symbols},merges=1000,i32,fwd" for symbols in (2000000, 16000000)],
    "gru_step": [f"batch=8,embedding=256,hidden=512,vocab=5893,f32,{way}" for way in ("fwd", "bwd")]
    + ["batch=128,embedding=256,hidden=512,vocab=5893,f32,bwd"],
    "kron": [f"batch=1024,factors={factors},f32,fwd" for factors in ("8x8x8x8x8", "16x16x16x16", "128x128")],
    "lottery": ["samples=256,features=16,hidden=32,steps=100,rounds=11,percent=80,seeds=5,f32,fwd"],
    "sparse24": ["tokens=8,n=4096,k=4096,train=0,f16,fwd"],
    "spmm": [f"size=4096x4096,n=256,sparsity={share},f32,fwd" for share in (0, 25, 50, 75, 95, 99)]
    + [f"size=4096x4096,n=256,sparsity={share},f32,bwd" for share in (50, 99)],
}
"""Cases beside those of the table, by operator: the points of charts over a size, and the controls of tickets."""
UNTRACED = {"bpe_train", "lottery", "seq2seq", "seq2seq_train"}
"""Operators without traces: one call makes thousands of launches, or none."""


@dataclass(frozen=True, slots=True)
class Part:
    """One `warpwatch run`. is_traced: profiles instead of checks and benches."""

    sha: str
    operator: str
    cases: tuple[str, ...]
    is_traced: bool = False

    @property
    def file(self) -> str:
        return f"{self.sha[:12]}-{self.operator}-{'traces' if self.is_traced else 'cases'}.wwb"

    def command(self, device: str, output: Path) -> list[str]:
        place = "cpu" if self.operator in CPU else device
        words = ["--commits", self.sha, "--operators", self.operator, "--device", place, "--output", str(output)]
        words += ["--kinds", "profile" if self.is_traced else "check,bench", "--repository", "."]
        return [str(ROOT / ".venv" / "bin" / "warpwatch"), "run", *words, "--cases", " ".join(self.cases)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0", help="devices of one model, separated by commas")
    parser.add_argument("--operators", default=",".join(TABLED), help="separated by commas; default: all of kernels/")
    parser.add_argument("--commit", default="HEAD", help="the newest commit to measure")
    parser.add_argument("--older", type=int, default=OLDER_COMMITS, help="so many older commits")
    parser.add_argument("--parts", type=Path, default=ROOT / "build" / "examples", help="folder of the parts' files")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "example" / "h200.wwb")
    parser.add_argument("--table", type=Path, help="document whose tables are printed anew")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    operators = given.operators.split(",")
    if unknown := sorted(set(operators) - set(TABLED)):
        parser.error(f"--operators {','.join(unknown)}: choose from {', '.join(TABLED)}")
    parts = plan(given.commit, given.older, operators)
    if given.dry_run:
        print("\n".join(part.file for part in parts))
        return 0
    given.parts.mkdir(parents=True, exist_ok=True)
    measure(parts, given.device.split(","), given.parts)
    files = [given.parts / part.file for part in parts if (given.parts / part.file).exists()]
    if not files:
        print("no part has results", file=sys.stderr)
        return 1
    join(files, given.output)
    print(f"{given.output}: {given.output.stat().st_size / 1e6:.1f} MB of {len(files)} parts")
    if given.table is not None:
        write_table(given.output, given.table)
    return 0


def plan(commit: str, older: int, operators: Sequence[str]) -> list[Part]:
    """The parts, oldest commit first, so that a file lists its jobs as they would have been done."""
    newest = git("rev-parse", f"{commit}^{{commit}}").strip()
    changed = changes(newest)
    parts = []
    for sha in choose_commits(changed, operators, older):
        parts += [Part(sha, operator, tuple(TABLED[operator])) for operator in operators if operator in changed[sha]]
    for operator in operators:
        parts.append(Part(newest, operator, (*TABLED[operator], *SWEPT.get(operator, ()))))
    traced = [operator for operator in operators if operator not in UNTRACED]
    return parts + [Part(newest, operator, (TABLED[operator][0],), is_traced=True) for operator in traced]


def changes(newest: str) -> dict[str, set[str]]:
    """The operators whose native code each earlier commit changed, newest commit first."""
    log = git("log", "--first-parent", "--no-renames", "--format=%x00%H", "--name-only", f"{newest}~1", "--", "csrc")
    found: dict[str, set[str]] = {}
    for entry in filter(None, log.split("\0")):
        sha, *paths = entry.split()
        found[sha] = {path.split("/")[1] for path in paths} & set(TABLED)
    return found


def choose_commits(changed: dict[str, set[str]], operators: Iterable[str], count: int) -> list[str]:
    """The `count` commits, oldest first, that changed most operators which none of those chosen before changed."""
    uncovered, chosen = set(operators), list[str]()
    while len(chosen) < count and changed:
        sha = max(changed, key=lambda sha: len(changed[sha] & uncovered))
        if not changed[sha] & uncovered:
            break
        uncovered -= changed[sha]
        chosen.append(sha)
    order = list(changed)
    return sorted(chosen, key=order.index, reverse=True)


def measure(parts: Sequence[Part], devices: Sequence[str], folder: Path) -> None:
    """Runs the parts that have no results file yet. A part that fails leaves none, and the next run tries it again."""
    missing = [part for part in parts if not (folder / part.file).exists()]
    print(f"{len(parts)} parts, {len(parts) - len(missing)} of them measured before", flush=True)
    began = time.monotonic()
    # Devices share the iterators: each takes the next part of a list.
    waiting, ended = iter(missing), count(1)

    def measure_on(device: str) -> None:
        for part in waiting:
            started = time.monotonic()
            # It exits 1 where a result is wrong, and 2 where it was interrupted, with a file of what it had measured.
            output = folder / f"{part.file}.unfinished"
            status = subprocess.run(part.command(device, output), cwd=ROOT, stdout=subprocess.DEVNULL).returncode
            if status in (0, 1) and output.exists():
                output.rename(folder / part.file)
            minutes = (time.monotonic() - started) / 60
            number = next(ended)
            rest = (time.monotonic() - began) / 60 / number * (len(missing) - number)
            outcome = "" if (folder / part.file).exists() else f", no results (exit {status})"
            print(f"[{number}/{len(missing)}] {part.file}: {minutes:.1f} min{outcome}; {rest:.0f} min left", flush=True)

    with ThreadPoolExecutor(len(devices)) as threads:
        list(threads.map(measure_on, devices))


def join(files: Sequence[Path], output: Path) -> None:
    """Writes one results file that holds the jobs of all, oldest commit first, with their traces."""
    commits: dict[str, CommitInfo] = {}
    about = ("", "")
    for file in files:
        with BundleReader(file) as reader:
            about = (reader.manifest.repository, reader.manifest.url)
            for commit in reader.manifest.commits:
                when = datetime.fromisoformat(commit.authored_at)
                commits[commit.sha] = CommitInfo(
                    commit.sha, commit.parent_sha, commit.ordinal, AUTHOR, when, commit.subject
                )
    infos = sorted(commits.values(), key=lambda info: info.ordinal)
    with tempfile.TemporaryDirectory() as folder, BundleWriter(output, *about, infos, __version__) as writer:
        for number, file in enumerate(files):
            traces = Path(folder) / str(number)
            traces.mkdir()
            with BundleReader(file) as reader:
                for run in reader.runs():
                    moments = (datetime.fromisoformat(text) for text in (run.started_at, run.finished_at))
                    writer.add(run.order, reader.extract(run.outcome, traces), *moments)
            shutil.rmtree(traces)


def write_table(results: Path, document: Path) -> None:
    """Replaces the tables of a document, which begin with its first heading of the second rank."""
    printed = "\n".join(tables(read([results]), "graph", GPU))
    introduction, _, _ = document.read_text(encoding="utf-8").partition("\n## ")
    document.write_text(f"{introduction}\n{printed}\n", encoding="utf-8")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
