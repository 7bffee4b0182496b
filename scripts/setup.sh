#!/usr/bin/env bash
# Finds a Python and has it make the virtual environment: setup_environment.py. Every step can be run again.
set -euo pipefail

usage() {
    cat <<'EOF'
usage: scripts/setup.sh [--python PYTHON] [--with-tests] [--help]

Makes the environment .venv with fairseq, torch and this package in it. Run again, it repairs what is
half made, and says so in one line when there is nothing to do.

  --python PYTHON   the Python to use: a path, a name on PATH, or 3.13 (default: the first of 3.13, 3.12, 3.11,
                    3.10 found on PATH or under pyenv). 3.11 and later get fairseq-fixed, 3.10 stock fairseq 0.12.2
  --with-tests      also what scripts/test.sh needs: pytest, ruff, mypy and the like

Environment variables:
  FAIRSEQ_RESID_VENV     the folder of the environment      (default: .venv beside setup.py)
  FAIRSEQ_RESID_PYTHON   the same as --python
  FAIRSEQ_RESID_TORCH    another torch than the pinned one: 'torch==2.11.0', 'torch==2.13.0+cu130'
  FAIRSEQ_RESID_NEED_MB  free disk to insist on, in MB      (default: 2500)
  PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...   pip's own; they choose the build of torch:
      CPU only:     PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu scripts/setup.sh
      CUDA 12.6:    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu126 scripts/setup.sh
      On Linux the build on PyPI itself is a CUDA build, several times larger than the CPU one.

Exit codes: 0 done; 1 an installation step failed (the reason is printed); 2 wrong usage;
            3 something is missing on this machine (Python, compiler, disk, write permission).
EOF
}

die() { # die CODE LINE...
    local code=$1 line
    shift
    for line in "$@"; do printf 'setup: %s\n' "$line" >&2; done
    exit "$code"
}

# ---------------------------------------------------------------------------------------------- Python

# Prints "3.11" where the Python serves, the reason where it does not (and fails).
probe_python() {
    local out
    if ! out=$("$1" -I -c '
import sys
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("has no venv or ensurepip module (Debian, Ubuntu: the package python%d.%d-venv)" % sys.version_info[:2])
import os, sysconfig
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    sys.exit("has no Python.h (Debian, Ubuntu: the package python%d.%d-dev)" % sys.version_info[:2])
print("%d.%d" % sys.version_info[:2])' 2>&1 </dev/null) || [[ -z $out ]]; then
        out=${out%%$'\n'*}
        printf '%s\n' "${out:-does not run}"
        return 1
    fi
    printf '%s\n' "${out##*$'\n'}"
}

# Every Python of one version on this machine, one per line; some may not run.
candidates() {
    local version=$1 root roots=() found
    type -aP "python$version" 2>/dev/null || true
    [[ -n ${PYENV_ROOT:-} ]] && roots+=("$PYENV_ROOT")
    if command -v pyenv >/dev/null 2>&1 && root=$(pyenv root 2>/dev/null); then roots+=("$root"); fi
    [[ -n ${HOME:-} ]] && roots+=("$HOME/.pyenv")
    for root in ${roots[@]+"${roots[@]}"}; do
        for found in "$root"/versions/"$version"[.-]*/bin/"python$version" "$root/versions/$version/bin/python$version"; do
            if [[ -x $found ]]; then printf '%s\n' "$found"; fi
        done
    done
}

# Prints the first Python of one version that serves; with nothing printed, fails.
find_version() { # find_version VERSION
    local found answer
    while IFS= read -r found; do
        if answer=$(probe_python "$found") && [[ $answer == "$1" ]]; then
            printf '%s\n' "$found"
            return
        fi
    done < <(candidates "$1")
    return 1
}

# Sets python and python_version, or ends with the list of what was looked at.
find_python() {
    local version found answer seen=() refused=()
    if [[ -n $python ]]; then
        # python3.11 and 3.11 mean any Python 3.11 that serves: a shim of pyenv can be on PATH and dead.
        version=${python#python}
        if [[ $version =~ ^3\.[0-9]+$ ]] && found=$(find_version "$version"); then
            python=$found python_version=$version
            return
        fi
        if ! command -v "$python" >/dev/null 2>&1; then
            die 3 "$python, given by $python_from, is not there." "Allowed: a Python 3.10, 3.11, 3.12 or 3.13."
        fi
        if ! answer=$(probe_python "$python"); then
            die 3 "$python, given by $python_from, does not serve: $answer." "Allowed: a Python 3.10, 3.11, 3.12 or 3.13."
        fi
        python_version=$answer
        return
    fi
    for version in 3.13 3.12 3.11 3.10; do
        while IFS= read -r found; do
            [[ " ${seen[*]-} " == *" $found "* ]] && continue
            seen+=("$found")
            if answer=$(probe_python "$found") && [[ $answer == "$version" ]]; then
                python=$found python_version=$version
                return
            fi
            refused+=("  $found: $answer")
        done < <(candidates "$version")
    done
    for found in $(type -aP python3 2>/dev/null || true) $(type -aP python 2>/dev/null || true); do
        if answer=$(probe_python "$found"); then
            python=$found python_version=$answer
            return
        fi
        refused+=("  $found: $answer")
    done
    die 3 "no Python that serves." \
        "Looked for python3.13, python3.12, python3.11, python3.10, python3 and python on PATH, and under pyenv." \
        ${refused[@]+"Refused:"} ${refused[@]+"${refused[@]}"} \
        "Install Python 3.13 with its venv module and headers (Debian, Ubuntu: python3.13-venv python3.13-dev;" \
        "macOS: brew install python@3.13; anywhere: pyenv install 3.13), or name one: --python PATH"
}

main() {
    local root venv answer program options=()
    python="" python_from="" python_version=""
    if [[ -n ${FAIRSEQ_RESID_PYTHON:-} ]]; then python=$FAIRSEQ_RESID_PYTHON python_from=FAIRSEQ_RESID_PYTHON; fi
    while (($#)); do
        case $1 in
            -h | --help)
                usage
                exit 0
                ;;
            --python)
                (($# >= 2)) || die 2 "--python needs a value: a path, a name on PATH, or a version like 3.11"
                python=$2 python_from=--python
                shift
                ;;
            --python=*) python=${1#--python=} python_from=--python ;;
            --with-tests) options=(--with-tests) ;;
            --find-python) # for .ci/run: prints a Python of this version that serves
                (($# >= 2)) || die 2 "--find-python needs a value: a version like 3.11"
                find_version "$2" && exit 0
                exit 3
                ;;
            *) die 2 "$1 is not an option. Allowed: --python PYTHON, --with-tests, --help" ;;
        esac
        shift
    done

    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
    venv=${FAIRSEQ_RESID_VENV:-$root/.venv}
    [[ $venv == /* ]] || venv=$PWD/$venv
    venv=${venv%/}
    program=$root/scripts/setup_environment.py
    options=("$venv" ${options[@]+"${options[@]}"})

    if [[ -n $python ]]; then find_python; fi
    if [[ -x $venv/bin/python && -f $venv/pyvenv.cfg ]]; then
        # Its own Python says that there is nothing to do; where it does not run, there is. It has to say something:
        # for the shell, an empty file is a program that ends well.
        answer=$("$venv/bin/python" -I "$program" check "${options[@]}" --python-version "$python_version" 2>/dev/null </dev/null) || answer=""
        if [[ -n $answer ]]; then
            printf '%s\n' "$answer"
            exit 0
        fi
        # An environment that is there keeps its Python, unless another was asked for.
        if [[ -z $python ]] && probe_python "$venv/bin/python" >/dev/null; then python=$venv/bin/python; fi
    fi
    if [[ -z $python ]]; then find_python; fi
    exec "$python" -I "$program" make "${options[@]}"
}

main "$@"
