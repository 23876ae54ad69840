#!/bin/sh
# Measures the finding of the example data on a GPU: every commit of docs/example/h100.wwb against the one before it.
#
# sh bench/example_ab.sh FOLDER
#
# Writes one results file per pair into FOLDER. `warpwatch import FILE --repository example-h100` shows the confirmed
# changes; a file belongs into docs/example once it was measured on the device whose name the example has.
set -eu
folder=$1
mkdir -p "$folder"
cases=""
for shape in batch=16,factors=32x32 batch=32,factors=128x128 batch=32,factors=8x8x8x8 batch=1024,factors=64x64; do
  cases="$cases $shape,f32,fwd $shape,f32,bwd"
done
base=d68c76ad
for head in cc0aaa42 6e4497e2 b7211dc9 aa1e37c5; do
  .venv/bin/warpwatch run --commits "$head" --base "$base" --operators kron --kinds compare --device cuda \
    --variants v1,v2,cublas,v3 --cases "${cases# }" --output "$folder/$base-$head.wwb"
  base=$head
done
