#!/bin/sh
# overlay.sh FOLDER CLONE COMMIT…: makes the branch `measured` in a clone: the commits in their order, each with the
# files of FOLDER in place, so that a history that never heard of Warpwatch has a warpwatch.toml. Authors and dates are
# those of the commits, so that the same commits come out each time, for people who have told git no name as well.
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
    export GIT_AUTHOR_DATE="$(git show -s --format=%aI "$commit")" GIT_COMMITTER_NAME="$GIT_AUTHOR_NAME"
    export GIT_COMMITTER_EMAIL="$GIT_AUTHOR_EMAIL" GIT_COMMITTER_DATE="$GIT_AUTHOR_DATE"
    parent=$(git show -s --format='%s (%h)' "$commit" | git commit-tree "$(git write-tree)" ${parent:+-p "$parent"})
done
git branch --force measured "$parent"
git rev-parse measured
