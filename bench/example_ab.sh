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
base=d68c76ad
for head in cc0aaa42 6e4497e2 b7211dc9 aa1e37c5; do
  .venv/bin/warpwatch run --commits "$head" --base "$base" --operators kron --suite quick --kinds compare \
    --variants v1,v2,cublas,v3 --device cuda --output "$folder/$base-$head.wwb"
  base=$head
done
