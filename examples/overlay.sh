#!/bin/sh
# overlay.sh FOLDER CLONE COMMIT…: makes the branch `measured` in a clone: the commits in their order, each with the
# files of FOLDER in place, so that a history that never heard of Warpwatch has a warpwatch.toml.
set -eu
folder=$(cd "$1" && pwd); cd "$2"; shift 2
parent=
for commit in "$@"; do
    export GIT_INDEX_FILE="$PWD/.git/measured.index"
    git read-tree "$commit"
    for file in $(cd "$folder" && ls -I 'README.md'); do
        git update-index --add --cacheinfo "100644,$(git hash-object -w "$folder/$file"),$file"
    done
    export GIT_AUTHOR_NAME="$(git show -s --format=%an "$commit")" GIT_AUTHOR_EMAIL="$(git show -s --format=%ae "$commit")"
    export GIT_AUTHOR_DATE="$(git show -s --format=%aI "$commit")"
    parent=$(git show -s --format='%s (%h)' "$commit" | git commit-tree "$(git write-tree)" ${parent:+-p "$parent"})
done
git branch --force measured "$parent"
git rev-parse measured
