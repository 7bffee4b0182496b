#!/usr/bin/env bash
# Sets up with the test tools, then runs the linters (ruff, mypy, import-linter, shellcheck) and pytest.
set -euo pipefail

usage() {
    cat <<'EOF'
usage: scripts/test.sh [--all] [--no-lint] [--references] [--] [PYTEST ARGUMENTS]

Makes or repairs the environment (scripts/setup.sh --with-tests), then runs ruff, mypy, import-linter,
shellcheck and the core tests: mathematics, models, decoding, averaging, checkpoints. That takes about
five minutes on two cores; --all takes about twenty. Every check runs, whatever the others found; the
exit code is that of the first that failed.

Arguments go to pytest, which then chooses among all tests:  scripts/test.sh --no-lint -k gate

  --all          every test: also training, data, images, studies, reports and whole commands
  --no-lint      pytest only
  --references   also installs other people's implementations of some structures (constraints/references.txt), which
                 ours are compared with; without them those tests are skipped

Environment variables: those of scripts/setup.sh.
EOF
}

lint=yes all="" references=""
while (($#)); do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --all) all=yes ;;
        --no-lint) lint="" ;;
        --references) references=yes ;;
        --)
            shift
            break
            ;;
        *) break ;;
    esac
    shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=${FAIRSEQ_RESID_VENV:-$root/.venv}
[[ $venv == /* ]] || venv=$PWD/$venv
# One spelling for setup.sh and for everything that the tests start.
export FAIRSEQ_RESID_VENV=$venv

"$root/scripts/setup.sh" --with-tests

# In a folder of their own, without what they ask for: see the list.
if [[ -n $references ]] && ! cmp -s "$root/constraints/references.txt" "$venv/references/list.txt"; then
    rm -rf "$venv/references"
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$venv/references" \
        -r "$root/constraints/references.txt"
    cp "$root/constraints/references.txt" "$venv/references/list.txt"
fi

# The commands of the environment (fairseq-train and the like) and its Python come first.
export PATH="$venv/bin:$PATH" VIRTUAL_ENV="$venv"
unset PYTHONPATH PYTHONHOME
first_failure=0

stage() { # stage NAME COMMAND...
    local name=$1 status=0
    shift
    printf '== %s\n' "$name"
    (cd "$root" && "$@") || status=$?
    if ((status != 0)); then
        printf '== %s failed (exit code %d)\n' "$name" "$status"
        if ((first_failure == 0)); then first_failure=$status; fi
    fi
}

# Every shell file that git tracks or would track; in a tree without git, every one outside hidden folders.
# shellcheck disable=SC2329  # called through stage
shell_files() {
    if git -C "$root" rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        (cd "$root" && git ls-files -co --exclude-standard -- '*.sh' .ci/run)
    else
        (cd "$root" && find . \( -name '.?*' -o -name data-bin -o -name checkpoints \) -prune -o -name '*.sh' -print && echo .ci/run)
    fi
}

# shellcheck disable=SC2329  # called through stage
check_shell() {
    local file files=()
    while IFS= read -r file; do
        if [[ -f $file ]]; then files+=("$file"); fi
    done < <(shell_files)
    shellcheck ${files[@]+"${files[@]}"}
}

if [[ -n $lint ]]; then
    stage ruff ruff check .
    stage mypy mypy
    stage import-linter lint-imports
    stage shellcheck check_shell
fi
if (($# == 0)) && [[ -z $all ]]; then set -- --core; fi
# Two workers, each with one thread (tests/conftest.py). A worker that crashes ends the run.
stage pytest python -m pytest -n 2 --dist worksteal --max-worker-restart=0 "$@"
exit "$first_failure"
