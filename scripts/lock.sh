#!/usr/bin/env bash
# Writes the locks: versions of the constraints with the hashes of all their files, by uv (pip install uv).
#   scripts/lock.sh cpu cuda v100
# cpu and v100 ask torch's own indexes, since those builds are no files of PyPI; cpu keeps its torch line where that index
# cannot be reached and the version is the same. scripts/install.sh installs a lock.
set -euo pipefail
cd "$(dirname "$0")/.."
INDEX=https://download.pytorch.org/whl

hashed() { # uv's options, requirements on standard input: a line a package, so that grep can take one out
    uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 \
        --python-platform x86_64-manylinux_2_28 "$@" - | sed ':joined; /\\$/ { N; s/ *\\\n */ /; b joined }'
}

for kind in "$@"; do
    case $kind in
    cpu) constraints=constraints.txt lock=requirements.lock ;;
    cuda | v100) constraints=constraints-$kind.txt lock=requirements-$kind.lock ;;
    *) echo "error: a lock is of cpu, cuda or v100, got '$kind'" >&2 && exit 2 ;;
    esac
    torch=$(grep '^torch==' $constraints)
    # The constraints for V100 name torch alone; all else is as on CPUs. NVIDIA's libraries follow from torch's own
    # requirements.
    others=$constraints
    [[ $kind == v100 ]] && others=constraints.txt
    case $kind in
    cpu) torch_lines=$(echo "$torch+cpu" | hashed --no-deps --index-url $INDEX/cpu || grep "^${torch}+cpu " $lock) ;;
    cuda) torch_lines=$(echo "$torch" | hashed --no-build --constraint $constraints) ;;
    v100) torch_lines=$(echo "$torch" | hashed --no-build --index-strategy unsafe-best-match --extra-index-url $INDEX/cu126) ;;
    esac
    {
        echo "# Made by scripts/lock.sh $kind from $constraints, for Linux x86-64 and Python 3.11."
        { echo "$torch_lines" && grep -vE '^(#|torch==)' $others | hashed --no-deps; } | LC_ALL=C sort --unique
    } >$lock.part
    # What the requirements need must be in the lock: pip refuses everything else. NVIDIA's libraries come with torch.
    missing=$(comm -23 \
        <(uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
            --extra train --extra dev --extra fp8 --extra server --extra wandb --constraint <(grep -v '^torch==' $others) --constraint <(echo "${torch%+*}") pyproject.toml \
            | sed 's/[ =;].*//' | grep -vE '^(cuda|nvidia)-|^triton$' | sort) \
        <(sed 's/[ =].*//' $lock.part | sort))
    [[ -z $missing ]] || { echo "error: $constraints has no version of" $missing >&2 && exit 1; }
    mv $lock.part $lock
    echo $lock
done
