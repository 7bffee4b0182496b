#!/usr/bin/env bash
# Creates the virtual environment with torch, fairseq and this package. See usage() below.
set -euo pipefail

usage() {
    cat <<'EOT'
usage: scripts/setup.sh [--python PYTHON] [--with-tests] [--help]

Creates the virtual environment .venv with torch, fairseq and this package. Run it again to update or
repair the environment; it exits immediately if there is nothing to do.

  --python PYTHON   a path, a command on PATH, or a version such as 3.12 (default: the newest of 3.13, 3.12,
                    3.11 and 3.10 on PATH or under pyenv). 3.11 and later use fairseq-fixed, 3.10 uses fairseq 0.12.2
  --with-tests      also install the tools for scripts/test.sh and scripts/docs.sh, and all optional packages

Environment variables:
  FAIRSEQ_RESID_VENV     folder of the environment          (default: .venv next to setup.py)
  FAIRSEQ_RESID_PYTHON   the same as --python
  FAIRSEQ_RESID_TORCH    a torch other than the pinned one, such as 'torch==2.11.0' or 'torch==2.13.0+cu130'
  FAIRSEQ_RESID_NEED_MB  free disk space required, in MB    (default: 9000 for a CUDA build of torch, else 2500)
  PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, ...   pip's variables. The index determines the build of torch:
      CPU only:     PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu scripts/setup.sh
      CUDA 12.6:    PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cu126 scripts/setup.sh
      Without them, PyPI's build is used: on Linux, it is for CUDA. On Linux without an NVIDIA GPU, the build for
      CPUs is used, unless pip has another index.

Exit codes: 0 success; 1 an installation step failed; 2 wrong usage;
            3 something is missing on this machine (Python, compiler, disk space, write permission)
EOT
}

die() { # die CODE LINE...
    printf 'setup: %s\n' "${@:2}" >&2
    exit "$1"
}

# Prints the version of PYTHON if it is usable. Otherwise prints the reason and fails.
probe() { # probe PYTHON
    local answer
    answer=$("$1" -I -c '
import sys
version = "%d.%d" % sys.version_info[:2]
if not (3, 10) <= sys.version_info[:2] <= (3, 13):
    sys.exit("Python %s is not supported" % version)
try:
    import ensurepip, venv
except ImportError:
    sys.exit("no venv or ensurepip module (Debian, Ubuntu: apt-get install python%s-venv)" % version)
import os, sysconfig
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    sys.exit("no Python.h (Debian, Ubuntu: apt-get install python%s-dev)" % version)
print(version)' 2>&1 </dev/null) && [[ $answer =~ ^3\.1[0-3]$ ]] && printf '%s\n' "$answer" && return
    answer=${answer%%$'\n'*}
    printf '%s\n' "${answer:-does not run}"
    return 1
}

# Prints every Python of these versions on PATH and under pyenv, whose shims on PATH may be broken.
candidates() { # candidates VERSION...
    local version folder
    for version; do
        type -aP "python$version" || true
        for folder in "${PYENV_ROOT:-${HOME:-}/.pyenv}"/versions/"$version"{,[.-]*}/bin; do
            [[ ! -x $folder/python$version ]] || printf '%s\n' "$folder/python$version"
        done
    done
}

# Sets python and version to the first usable candidate; sets python to "" if there is none.
choose() { # choose VERSION...
    local answer
    while IFS= read -r python; do
        if answer=$(probe "$python"); then
            version=$answer
            return
        fi
        refused+=("  $python: $answer")
    done < <(candidates "$@")
    python=""
}

# Runs a command, writes its output to the log and explains a failure.
step() { # step TEXT COMMAND...
    local status=0 output reason began=$SECONDS clock
    printf 'setup: %s\n' "$1"
    # Shows every 20 seconds that it still works, and ends with this script.
    while sleep 1 && kill -0 $$ 2>/dev/null; do
        (((SECONDS - began) % 20)) || printf 'setup:       %d s so far\n' $((SECONDS - began))
    done &
    clock=$!
    output=$("${@:2}" </dev/null 2>&1) || status=$?
    kill "$clock" 2>/dev/null || true
    wait "$clock" 2>/dev/null || true
    printf '===== %s\n%s\n' "$1" "$output" 2>/dev/null >>"$log" || true
    if ((status == 0)); then return; fi
    case $output in
        *'No space left'* | *'Errno 28'* | *'quota exceeded'*)
            reason="The disk is full. Free some space (pip cache purge), or choose another folder: FAIRSEQ_RESID_VENV" ;;
        *'Max retries'* | *'Connection'*'Error'* | *'resolution'* | *'unreachable'* | *'SSLError'* | *'from versions: none'*)
            reason="The package index cannot be reached or does not have this package. Check the network, https_proxy, PIP_INDEX_URL" ;;
        *) reason="The full output is in $log" ;;
    esac
    tail -n 25 <<<"$output" | cut -c 1-300 >&2
    die 1 "failed: $1" "$reason" "Run scripts/setup.sh again to continue; downloads are kept"
}

python=${FAIRSEQ_RESID_PYTHON:-} from=FAIRSEQ_RESID_PYTHON version="" extra="" refused=()
while (($#)); do
    case $1 in
        -h | --help)
            usage
            exit
            ;;
        --python | --find-python)
            (($# >= 2)) || die 2 "$1: no value; allowed: a path, a command on PATH, or a version such as 3.12"
            python=$2 from=$1
            shift
            ;;
        --with-tests) extra="test" ;;
        *) die 2 "$1: unknown option; allowed: --python PYTHON, --with-tests, --help" ;;
    esac
    shift
done

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=${FAIRSEQ_RESID_VENV:-$root/.venv}
[[ $venv == /* ]] || venv=$PWD/$venv
venv=${venv%/}
stamp=$venv/.setup-stamp log=$venv/setup.log
torch=${FAIRSEQ_RESID_TORCH:-torch}

# An existing environment keeps its Python unless another one is requested.
if [[ -z $python && -x $venv/bin/python ]] && probe "$venv/bin/python" >/dev/null; then
    python=$venv/bin/python
fi
named=$python
if [[ ${named#python} =~ ^3\.[0-9]+$ ]]; then
    choose "${named#python}"
elif [[ -n $named ]]; then
    command -v "$named" >/dev/null || die 3 "$from $named: no such Python; allowed: Python 3.10, 3.11, 3.12 or 3.13"
    version=$(probe "$named") || die 3 "$from $named: $version; allowed: Python 3.10, 3.11, 3.12 or 3.13"
else
    choose 3.13 3.12 3.11 3.10 3 ""
fi
if [[ $from == --find-python ]]; then # .ci/run searches for a Python of this version
    [[ -n $python ]] || exit 3
    printf '%s\n' "$python"
    exit
fi
[[ -n $python ]] || die 3 "no usable Python was found${named:+ for $from $named}. Refused:" "${refused[@]:-  none}" \
    "Install Python 3.13 with its venv module and headers (Debian, Ubuntu: python3.13-venv python3.13-dev;" \
    "macOS: brew install python@3.13; anywhere: pyenv install 3.13), or name one with --python PATH"

fairseq=fairseq-fixed constraints=$root/constraints/fairseq-fixed.txt
if [[ $version == 3.10 ]]; then fairseq=fairseq constraints=$root/constraints/fairseq-0.12.2.txt; fi

# Only one setup runs at a time in a source tree. The commands started here inherit the lock.
if command -v flock >/dev/null; then
    exec 9<"$root"
    flock -n 9 || { printf 'setup: waiting for another setup.sh to finish\n' && flock 9; }
fi

# The stamp records the location of the environment, its inputs and its packages.
place="$root $venv $version"
inputs="$(cat "$root"/{setup.py,pyproject.toml,fairseq_resid/version.py} "$constraints" | cksum) $torch"
packages() { (cd "$venv/lib/python$version/site-packages" 2>/dev/null && printf '%s\n' *[!_] | grep -v 'dist-info$' | sort); }
old_place="" old_inputs="" old_extra="" whole=""
if [[ -f $stamp ]]; then { read -r old_place && read -r old_inputs && read -r old_extra; } <"$stamp" || true; fi
missing=$(comm -13 <(packages) <(tail -n +4 "$stamp" 2>/dev/null))
lost=$(grep -v '^__editable__' <<<"$missing" || true)
# pip install ".[onnx]" replaces the link to this folder by a copy, which installing again in place mends.
if [[ $old_place == "$place" && -z $lost ]] && "$venv/bin/python" -I -c '' 2>/dev/null; then
    whole=yes
    extra=${extra:-${old_extra//[][]/}} # test tools stay installed; setup.sh of 0.6 wrote [test]
elif [[ -n $lost ]]; then
    printf 'setup: %s is built again: it lacks %s\n' "$venv" "$(head -n 3 <<<"$lost" | paste -sd ' ' -)"
fi
if [[ -n $whole && -z $missing && $old_inputs == "$inputs" && $old_extra == "$extra" ]]; then
    printf 'setup: nothing to do: %s is complete (Python %s)\n' "$venv" "$version"
    exit
fi

# Check the requirements on this machine.
if [[ ! -f $venv/pyvenv.cfg && -n $(ls -A "$venv" 2>/dev/null) ]]; then
    die 3 "$venv: not a Python environment, and not empty; choose another folder with FAIRSEQ_RESID_VENV=FOLDER"
fi
folder=$venv
until [[ -d $folder ]]; do folder=$(dirname "$folder"); done
[[ -w $folder ]] || die 3 "$folder: not writable; choose another folder with FAIRSEQ_RESID_VENV=FOLDER"
# PyPI's build of torch for Linux is for CUDA. Without a GPU, the much smaller build for CPUs does the same.
cpu=https://download.pytorch.org/whl/cpu need=2500
if [[ $(uname) == Linux && "${PIP_INDEX_URL:-} ${PIP_EXTRA_INDEX_URL:-}" != *whl/cpu* ]]; then
    configured=$("$python" -I -m pip --disable-pip-version-check config list </dev/null 2>/dev/null || true)
    if command -v nvidia-smi >/dev/null || [[ $torch != torch || $configured == *index* || $configured == *find-links* ]]; then
        need=9000
    elif [[ -z $whole ]] || compgen -G "$venv/lib/python$version/site-packages/torch-*+cpu.dist-info" >/dev/null; then
        export PIP_EXTRA_INDEX_URL=$cpu
        printf 'setup: no NVIDIA GPU found: the CPU build of torch is used, from %s\n' "$cpu"
        printf 'setup: for the GPUs of another machine: PIP_INDEX_URL=https://pypi.org/simple scripts/setup.sh\n'
    fi # an environment with a CUDA build keeps it
fi
need=${FAIRSEQ_RESID_NEED_MB:-$need} free=$(df -Pm "$folder" | awk 'NR == 2 { print $4 }')
[[ $need =~ ^[0-9]+$ ]] || die 2 "FAIRSEQ_RESID_NEED_MB=$need: not a whole number; allowed: a number of MB, such as 2500"
if [[ -z $whole ]]; then
    ((free >= need)) || die 3 "$folder: only $free MB of free disk space; $need MB are needed (2500 MB for the CPU build of torch; see --help)"
fi
include=$("$python" -I -c 'import sysconfig; print(sysconfig.get_path("include"))')
# CXX may contain options; if it is not set, setuptools compiles with c++ or g++.
read -r -a compiler <<<"${CXX:-$(command -v g++ c++ clang++ | head -n 1)}"
printf '#include <Python.h>\n#include <vector>\n' | "${compiler[@]:-g++}" -std=c++11 -fsyntax-only "-I$include" -x c++ - 2>/dev/null ||
    die 3 "${compiler[*]:-g++}: cannot compile C++ with Python.h, which fairseq needs" \
        "Install a compiler and Python's headers (Debian, Ubuntu: apt-get install g++ python3-dev; macOS: xcode-select --install)"

start=$SECONDS
unset PYTHONPATH PYTHONHOME
export PYTHONNOUSERSITE=1 PIP_USER=0
if [[ -z $whole ]]; then
    # The environment cannot be rebuilt by its own interpreter.
    python=$("$python" -I -c 'import sys; print(getattr(sys, "_base_executable", sys.executable))')
    step "[1/4] environment $venv with $python" "$python" -I -m venv --clear "$venv"
fi
rm -f "$stamp"
pin() { sed -n "s/^$1==\([0-9.]*\).*/$1==\1/p" "$constraints"; }
if [[ $torch == torch ]]; then
    cp "$constraints" "$venv/constraints.txt"
else
    # Packages that depend on the version of torch must match the installed one.
    grep -vE '^(torch|torchaudio|triton)==' "$constraints" >"$venv/constraints.txt"
fi
install=("$venv/bin/python" -I -m pip --disable-pip-version-check install --progress-bar off --no-input -c "$venv/constraints.txt")
step "[2/4] $torch, numpy and build tools" "${install[@]}" "$(pin pip)" "$torch" numpy cython setuptools wheel
installed=$("$venv/bin/python" -I -c 'from importlib.metadata import version; print("torch==" + version("torch"))')
if [[ $torch != torch ]]; then printf '%s\n' "$installed" >>"$venv/constraints.txt"; fi
text="[3/4] $(pin "$fairseq"), compiled the first time (up to 3 minutes)"
# setuptools compiles one extension after the other unless this file says otherwise. Each takes up to 800 MB of memory.
# torch's builder writes the ninja files of all extensions to one path, so ninja, if it is installed, must not be found.
# With CUDA_HOME, it switches the one compiler of all extensions to nvcc and back.
cores=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
if [[ -n ${CUDA_HOME:-} ]]; then cores=1; fi
mkdir -p "$venv/build"
printf '[build_ext]\nparallel = %d\n' $((cores < 4 ? cores : 4)) >"$venv/build/config"
printf '#!/bin/sh\nexit 1\n' >"$venv/build/ninja"
chmod +x "$venv/build/ninja"
export DIST_EXTRA_CONFIG=$venv/build/config
if [[ $fairseq == fairseq ]]; then
    # The source of fairseq 0.12.2 lacks a file that its setup.py compiles only if torch is installed. We build it in
    # isolation, where there is no torch. Unlike -c, PIP_CONSTRAINT applies there too: the binary must match our numpy.
    step "$text" env "PIP_CONSTRAINT=$venv/constraints.txt" "${install[@]}" fairseq
else
    # A build in isolation would download torch a second time.
    step "$text" env "PATH=$venv/build:$PATH" "${install[@]}" --no-build-isolation fairseq-fixed
fi
step "[4/4] fairseq_resid" "${install[@]}" --no-build-isolation -e "${root}[fairseq${extra:+,$extra}]"
step "check" "$venv/bin/python" -I -c 'import torch, fairseq.data.data_utils_fast, sacrebleu, sentencepiece, importlib.util as u; assert u.find_spec("fairseq_resid")'
{ printf '%s\n' "$place" "$inputs" "$extra" && packages; } >"$stamp.partial"
mv "$stamp.partial" "$stamp"
printf 'setup: done in %d s, with %s. Activate the environment: source %s/bin/activate\n' $((SECONDS - start)) "$installed" "$venv"
