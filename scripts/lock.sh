#!/usr/bin/env bash
# Writes the locks: versions of the constraints with the hashes of all their files, by uv (pip install uv).
#   scripts/lock.sh cpu cuda v100
# The builds of torch for cpu and v100 are no files of PyPI but of torch's own index, which is asked for nothing else; where
# it cannot be reached the lock keeps its line of the same build. scripts/install.sh installs a lock.
set -euo pipefail
cd "$(dirname "$0")/.."

hashed() { # uv's options, requirements on standard input: a line a package, so that grep can take one out
    uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 "$@" - | sed ':joined; /\\$/ { N; s/ *\\\n */ /; b joined }'
}

for kind in "$@"; do
    # constraints: the versions of everything, but for what differences, if named, has.
    constraints=constraints.txt differences=
    case $kind in
    cpu) lock=requirements.lock torch=$(grep '^torch==' $constraints)+cpu ;;
    cuda) constraints=constraints-cuda.txt lock=requirements-cuda.lock torch=$(grep '^torch==' $constraints) ;;
    v100) differences=constraints-v100.txt lock=requirements-v100.lock torch=$(grep '^torch==' $differences) ;;
    *) echo "error: a lock is of cpu, cuda or v100, got '$kind'" >&2 && exit 2 ;;
    esac
    if [[ $torch == *+* ]]; then
        index=https://download.pytorch.org/whl/${torch#*+}
        torch_lines=$(echo "$torch" | hashed --no-deps --index-url "$index" || grep "^$torch " $lock) ||
            { echo "error: neither $index nor $lock has a hash of $torch" >&2 && exit 1; }
    else
        torch_lines=$(echo "$torch" | hashed --no-build --constraint $constraints)
    fi
    {
        echo "# Made by scripts/lock.sh $kind from ${differences:-$constraints}, for Linux x86-64 and Python 3.11."
        { echo "$torch_lines" && grep -hvE '^(#|torch==)' $constraints $differences | hashed --no-deps; } | LC_ALL=C sort --unique
    } >$lock.part
    # What the requirements need must be in the lock: pip refuses everything else. NVIDIA's libraries come with torch.
    missing=$(comm -23 \
        <(uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
            --extra train --extra dev --extra fp8 --extra server --extra wandb --constraint <(grep -v '^torch==' $constraints) --constraint <(echo "${torch%+*}") pyproject.toml \
            | sed 's/[ =;].*//' | grep -vE '^(cuda|nvidia)-|^triton$' | sort) \
        <(sed 's/[ =].*//' $lock.part | sort))
    [[ -z $missing ]] || { echo "error: $constraints has no version of" $missing >&2 && exit 1; }
    mv $lock.part $lock
    echo $lock
done
