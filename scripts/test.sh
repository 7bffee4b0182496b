#!/usr/bin/env bash
# Sets up the environment with the test tools, then runs the linters (ruff, mypy, import-linter, shellcheck) and pytest.
set -euo pipefail

usage() {
    cat <<'EOF'
usage: scripts/test.sh [--all] [--lint-only] [--no-lint] [--references] [--] [PYTEST ARGUMENTS]

Creates or repairs the environment (scripts/setup.sh --with-tests), then runs ruff, mypy, import-linter,
shellcheck and the core tests: mathematics, models, decoding, averaging, checkpoints. This takes about
five minutes on two cores; --all takes 17. All checks run even if one fails. The exit code is
that of the first check that failed.

All other arguments are passed to pytest. With such arguments, it selects from all tests, not only from the core tests:
`scripts/test.sh --no-lint -k gate` runs every test whose name contains "gate".

  --all          all tests: also training, data, images, studies, reports and whole commands
  --lint-only    linters only
  --no-lint      pytest only
  --references   also install reference implementations of some structures (constraints/references.txt) and
                 compare ours with them; otherwise these tests are skipped

The environment variables are those of scripts/setup.sh; see its --help.
EOF
}

lint=yes tests=yes all="" references=""
while (($#)); do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --all) all=yes ;;
        --lint-only) tests="" ;;
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
# Export an absolute path, for setup.sh and for all commands that the tests start.
export FAIRSEQ_RESID_VENV=$venv

"$root/scripts/setup.sh" --with-tests

# Install the reference implementations into a separate folder without their dependencies; see
# constraints/references.txt.
if [[ -n $references ]] && ! cmp -s "$root/constraints/references.txt" "$venv/references/list.txt"; then
    rm -rf "$venv/references"
    "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$venv/references" \
        -r "$root/constraints/references.txt"
    cp "$root/constraints/references.txt" "$venv/references/list.txt"
fi

# Put Python and the commands of the environment, such as fairseq-train, first on PATH.
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

# Lists all shell files that git tracks or would track; without git, those outside hidden folders, data-bin and
# checkpoints.
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
if [[ -n $tests ]]; then
    if (($# == 0)) && [[ -z $all ]]; then set -- --core; fi
    # Two workers, each with one thread (tests/conftest.py). A crashed worker ends the run.
    stage pytest python -m pytest -n 2 --dist worksteal --max-worker-restart=0 "$@"
fi
exit "$first_failure"
