#!/usr/bin/env bash
# Makes the virtual environment with fairseq, torch and this package in it. Every step can be run again.
set -euo pipefail

usage() {
    cat <<'EOF'
usage: scripts/setup.sh [--python PYTHON] [--with-tests] [--help]

Makes the environment .venv with fairseq, torch and this package in it. Run again, it repairs what is
half made, and says so in one line when there is nothing to do.

  --python PYTHON   the Python to use: a path, a name on PATH, or 3.11 (default: the first of 3.11, 3.12,
                    3.10 found on PATH or under pyenv). 3.11 and 3.12 get fairseq-fixed, 3.10 stock fairseq 0.12.2
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

say() { printf 'setup: %s\n' "$*"; }

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
if not (3, 10) <= sys.version_info[:2] <= (3, 12):
    sys.exit("is Python %d.%d" % sys.version_info[:2])
try:
    import ensurepip, venv
except ImportError:
    sys.exit("has no venv or ensurepip module (Debian, Ubuntu: the package python%d.%d-venv)" % sys.version_info[:2])
import os, sysconfig
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    sys.exit("has no Python.h (Debian, Ubuntu: the package python%d.%d-dev)" % sys.version_info[:2])
print("%d.%d" % sys.version_info[:2])' 2>&1 </dev/null); then
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
            die 3 "$python, given by $python_from, is not there." "Allowed: a Python 3.10, 3.11 or 3.12."
        fi
        if ! answer=$(probe_python "$python"); then
            die 3 "$python, given by $python_from, does not serve: $answer." "Allowed: a Python 3.10, 3.11 or 3.12."
        fi
        python_version=$answer
        return
    fi
    for version in 3.11 3.12 3.10; do
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
        "Looked for python3.11, python3.12, python3.10, python3 and python on PATH, and under pyenv." \
        ${refused[@]+"Refused:"} ${refused[@]+"${refused[@]}"} \
        "Install Python 3.11 with its venv module and headers (Debian, Ubuntu: python3.11-venv python3.11-dev;" \
        "macOS: brew install python@3.11; anywhere: pyenv install 3.11), or name one: --python PATH"
}

# ------------------------------------------------------------------------------------- what is missing

check_disk() { # check_disk FOLDER: the nearest folder above it that exists is asked
    local folder=$1 need=${FAIRSEQ_RESID_NEED_MB:-2500} free
    while [[ ! -d $folder ]]; do folder=$(dirname "$folder"); done
    [[ -w $folder ]] || die 3 "$folder is not writable. Choose another place: FAIRSEQ_RESID_VENV=FOLDER scripts/setup.sh"
    free=$(df -Pk "$folder" 2>/dev/null | awk 'NR == 2 { print int($4 / 1024) }')
    [[ -n $free ]] || return 0
    if ((free < need)); then
        die 3 "not enough disk: $free MB free at $folder, $need MB needed (a CPU build of torch; a CUDA build needs $cuda_mb MB)." \
            "Make room, or choose another place: FAIRSEQ_RESID_VENV=FOLDER scripts/setup.sh"
    fi
    if ((free < cuda_mb)) && [[ $(uname -s) == Linux ]]; then
        say "$free MB free at $folder: enough for a CPU build of torch, not for a CUDA build ($cuda_mb MB)."
    fi
}

# fairseq comes as source: a C++ compiler has to compile a file that includes Python.h.
check_compiler() { # check_compiler PYTHON
    local cxx=${CXX:-} include out name
    if [[ -z $cxx ]]; then
        for name in g++ c++ clang++; do
            if command -v "$name" >/dev/null 2>&1; then
                cxx=$name
                break
            fi
        done
    fi
    [[ -n $cxx ]] || die 3 "no C++ compiler: fairseq is built from source." \
        "Install one (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++; macOS: xcode-select --install)."
    include=$("$1" -I -c 'import sysconfig; print(sysconfig.get_path("include"))')
    # CXX may hold options ("ccache g++"): left unquoted on purpose.
    # shellcheck disable=SC2086
    if ! out=$(printf '#include <Python.h>\n#include <vector>\n' | $cxx -std=c++11 -fsyntax-only "-I$include" -x c++ - 2>&1); then
        die 3 "the C++ compiler '$cxx' cannot compile a file that includes Python.h and <vector>:" "${out%%$'\n'*}" \
            "Install g++ and Python's headers (Debian, Ubuntu: apt-get install g++ python3-dev)."
    fi
}

# Says in plain words why an installation step failed, from what pip wrote.
diagnose() { # diagnose LOG
    if grep -qE 'No space left on device|Errno 28|Disk quota exceeded' "$1"; then
        say "Reason: the disk is full. Make room (pip's downloads: pip cache purge) or choose another place: FAIRSEQ_RESID_VENV=FOLDER"
    elif grep -qE 'Permission denied|Errno 13|Read-only file system' "$1"; then
        say "Reason: a folder cannot be written to (see the line with 'Permission denied' or 'Read-only')."
    elif grep -qE 'CERTIFICATE_VERIFY_FAILED|SSLError' "$1"; then
        say "Reason: the package index was reached, but its certificate is not trusted here (PIP_CERT names a certificate file)."
    elif grep -qE 'Temporary failure in name resolution|Name or service not known|nodename nor servname|NewConnectionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|Network is unreachable|Connection (refused|reset|aborted)|RemoteDisconnected|Max retries exceeded' "$1"; then
        say "Reason: no package index could be reached. Check the network, the proxy (https_proxy) or pip's index (PIP_INDEX_URL)."
    elif grep -qE 'THESE PACKAGES DO NOT MATCH THE HASHES' "$1"; then
        say "Reason: a download was damaged. Run scripts/setup.sh again; if it stays so: pip cache purge"
    elif grep -qE 'fatal error: Killed|internal compiler error|MemoryError|Cannot allocate memory|Signals\.SIGKILL|exit (code|status):? -9' "$1"; then
        say "Reason: memory ran out. Close other programs, or MAX_JOBS=1 scripts/setup.sh"
    elif grep -qE "Python\.h: No such file|command '[^']*(g\+\+|gcc|cc|clang)[^']*' failed|error: command .* failed|Failed (to build|building)|Unable to find a compatible" "$1"; then
        say "Reason: fairseq could not be compiled (a C++ compiler and Python's headers are needed; the compiler's words are above or in the log)."
    elif grep -qE 'from versions: none' "$1" || { grep -q ResolutionImpossible "$1" && ! grep -qE '^(Collecting|Processing|Requirement already)' "$1"; }; then
        # With its retries off, pip says no more than this about an index that does not answer.
        say "Reason: the package index was not reached, or does not have the package at all. Check the network and pip's index (PIP_INDEX_URL)."
    elif grep -qE 'No matching distribution found|Could not find a version' "$1"; then
        say "Reason: the package index has no version that fits: $(grep -m 1 -oE 'No matching distribution found for .*' "$1" || echo 'see the log')"
    elif grep -qE 'ResolutionImpossible|conflicting dependencies' "$1"; then
        say "Reason: the versions asked for exclude each other (is FAIRSEQ_RESID_TORCH set?)."
    else
        say "Reason: not one that is known; the end of the log is above."
    fi
}

# --------------------------------------------------------------------------------------------- the stamp

# What the environment was made from. It is written when everything is installed, and only then.
print_stamp() { # needs venv, venv_version, extras
    local inputs=("$root/setup.py" "$root/pyproject.toml" "$root/fairseq_resid/version.py" "$root"/constraints/*.txt)
    local hash entry
    hash=$({
        printf '%s\n' "format 1" "$root" "$venv" "$venv_version" "${FAIRSEQ_RESID_TORCH:-}"
        cat "${inputs[@]}"
    } | if command -v sha256sum >/dev/null 2>&1; then sha256sum; elif command -v shasum >/dev/null 2>&1; then shasum -a 256; else cksum; fi)
    printf '%s\n' "${hash%% *}" "extras=$extras"
    for entry in "$venv"/lib/python*/site-packages/*; do
        if [[ -e $entry && $entry != */__pycache__ ]]; then printf '%s\n' "${entry#"$venv"/}"; fi
    done
}

# True if the stamp fits this tree, this environment and what is asked for, and nothing was deleted since.
is_done() {
    local want line number=0 have_extras=none
    [[ -f $stamp && -x $venv/bin/python ]] || return 1
    want=$(print_stamp)
    want=${want%%$'\n'*}
    while IFS= read -r line; do
        number=$((number + 1))
        case $number in
            1) [[ $line == "$want" ]] || return 1 ;;
            2) have_extras=${line#extras=} ;;
            *) [[ -e $venv/$line ]] || return 1 ;;
        esac
    done <"$stamp"
    ((number > 2)) && [[ $have_extras == test || $extras == none ]]
}

# The version line of pyvenv.cfg, read without starting Python.
read_venv_version() {
    local key equals value
    venv_version=""
    [[ -f $venv/pyvenv.cfg ]] || return 0
    while read -r key equals value; do
        if [[ $key == version && $equals == "=" ]]; then venv_version=$value; fi
    done <"$venv/pyvenv.cfg"
}

# ----------------------------------------------------------------------------------------------- steps

step_number=0
step_open=""
child=""

step() { # step TEXT: one line per step; its duration is added by finish_step
    step_number=$((step_number + 1))
    step_start=$SECONDS
    step_open=yes
    printf 'setup: [%d/5] %s ... ' "$step_number" "$1"
    printf '\n===== [%d/5] %s\n' "$step_number" "$1" >>"$log"
    step_offset=$(wc -l <"$log")
}

finish_step() {
    step_open=""
    printf '%d s\n' $((SECONDS - step_start))
}

# Runs a command with its output in the log; in the background, so that a signal ends it at once.
quietly() {
    local status=0
    "$@" >>"$log" 2>&1 </dev/null &
    child=$!
    wait "$child" || status=$?
    child=""
    ((status == 0)) && return
    [[ -n $step_open ]] && printf 'failed after %d s\n' $((SECONDS - step_start))
    step_open=""
    {
        tail -n "+$((step_offset + 1))" "$log" >"$log.step"
        say "the last lines of $log:"
        grep -vE 'Location .* is ignored|^ *$' "$log.step" | tail -n 25 | cut -c 1-300 | sed 's/^/    /'
        diagnose "$log.step"
        rm -f "$log.step"
        say "What was downloaded is kept: the next scripts/setup.sh goes on from here."
    } >&2
    exit 1
}

stopped() {
    trap - INT TERM HUP
    if [[ -n $child ]]; then kill -TERM "$child" 2>/dev/null || true; fi
    [[ -n $step_open ]] && printf 'stopped\n'
    say "stopped before the end; scripts/setup.sh goes on from here." >&2
    exit "$1"
}

# A pip that was killed leaves packages whose files are not all there, and believes them installed. Their
# records are removed, so that pip installs them again. Prints the names.
drop_half_installed() {
    "$venv/bin/python" -I - <<'EOF'
import csv
import shutil
import sysconfig
from pathlib import Path

site = Path(sysconfig.get_path("purelib"))
for leftover in site.glob("~*"):
    shutil.rmtree(leftover, ignore_errors=True)
for info in sorted(site.glob("*.dist-info")):
    try:
        with open(info / "RECORD", newline="", encoding="utf-8") as lines:
            files = [row[0] for row in csv.reader(lines) if row and not row[0].endswith(".pyc")]
    except OSError:
        files = []
    if not (info / "METADATA").is_file() or not files or not all((site / file).exists() for file in files):
        print(info.name.split("-")[0])
        shutil.rmtree(info, ignore_errors=True)
EOF
}

is_venv_sound() {
    [[ -n $venv_version && -x $venv/bin/python && -f $venv/bin/activate ]] || return 1
    # A moved environment still starts, but its commands name the old place in their first line.
    grep -qF "$venv" "$venv/bin/activate" || return 1
    "$venv/bin/python" -I -m pip --version >/dev/null 2>&1
}

make_venv() {
    local made_for=${venv_version%.*} half
    step "environment $venv"
    if [[ -n $venv_version && $made_for != "$python_version" ]]; then
        printf '(was Python %s, made anew) ' "$made_for"
    elif is_venv_sound; then
        half=$(drop_half_installed)
        if [[ $'\n'$half$'\n' != *$'\n'pip$'\n'* ]]; then
            [[ -n $half ]] && printf '(repairing: %s) ' "${half//$'\n'/, }"
            finish_step
            return
        fi
    fi
    find "$venv" -mindepth 1 -maxdepth 1 ! -name .setup-lock ! -name setup.log -exec rm -rf {} +
    quietly "$python" -m venv "$venv"
    read_venv_version
    finish_step
}

install_all() {
    local constraints torch_spec=torch extra="" pins fairseq duration note=""
    case $python_version in
        3.10) pins=$root/constraints/fairseq-0.12.2.txt fairseq=fairseq duration="half a minute" ;;
        *) pins=$root/constraints/fairseq-fixed.txt fairseq=fairseq-fixed duration="3 minutes" ;;
    esac
    constraints=$venv/constraints.txt
    if [[ -n ${FAIRSEQ_RESID_TORCH:-} ]]; then
        torch_spec=$FAIRSEQ_RESID_TORCH
        # torchaudio and triton follow torch: without their pins pip takes those that fit.
        grep -vE '^(torch|torchaudio|triton)==' "$pins" >"$constraints"
    else
        cp "$pins" "$constraints"
        note=" $(sed -n 's/^torch==//p' "$pins")"
    fi
    [[ $extras == test ]] && extra="[test]"

    local pip=("$venv/bin/python" -m pip --disable-pip-version-check install --progress-bar off --no-input -c "$constraints")

    step "pip $(sed -n 's/^pip==//p' "$pins")"
    quietly "${pip[@]}" "pip$(sed -n 's/^pip==/==/p' "$pins")"
    finish_step

    step "$torch_spec${note}, numpy, build tools"
    quietly "${pip[@]}" "$torch_spec" numpy cython setuptools wheel
    if [[ -n ${FAIRSEQ_RESID_TORCH:-} ]]; then
        "$venv/bin/python" -I -c 'import importlib.metadata as m; print("torch==" + m.version("torch"))' >>"$constraints"
    fi
    finish_step

    step "$fairseq $(sed -n "s/^$fairseq==//p" "$pins") (compiled on the first run: about $duration) and this package"
    if [[ $fairseq == fairseq ]]; then
        # 0.12.2's source archive lacks a file that its setup.py compiles where it sees torch: it is built
        # apart, without torch; PIP_CONSTRAINT, unlike -c, holds in that build too, so that numpy is ours.
        quietly env PIP_CONSTRAINT="$constraints" "${pip[@]}" fairseq
    else
        # Built here, beside torch: apart from it pip would fetch a second torch.
        quietly "${pip[@]}" --no-build-isolation "$fairseq"
    fi
    quietly "${pip[@]}" --no-build-isolation -e "$root$extra"
    finish_step

    step "check"
    quietly "$venv/bin/python" -c '
import importlib.util
import torch, fairseq, fairseq.data.data_utils_fast, sacrebleu, sentencepiece
assert importlib.util.find_spec("fairseq_resid"), "fairseq_resid is not importable"
print("torch", torch.__version__, "CUDA", torch.version.cuda)'
    finish_step
}

main() {
    local print_stamp_only=""
    python="" python_from="" extras=none
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
            --with-tests) extras="test" ;;
            --print-stamp) print_stamp_only=yes ;; # for the tests
            --diagnose)                            # for the tests: says what a log of pip means
                diagnose "$2"
                exit 0
                ;;
            --find-python) # for .ci/run: prints a Python of this version that serves
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
    stamp=$venv/.setup-stamp
    log=$venv/setup.log
    cuda_mb=9000

    # Foreign packages must not count as installed, and a "--user" in pip's configuration fails in an environment.
    unset PYTHONPATH PYTHONHOME
    export PYTHONNOUSERSITE=1 PIP_USER=0

    read_venv_version
    if [[ -n $print_stamp_only ]]; then
        print_stamp
        exit 0
    fi

    if [[ -n $python ]]; then find_python; fi
    if is_done && { [[ -z $python ]] || [[ ${venv_version%.*} == "$python_version" ]]; }; then
        say "nothing to do: $venv is complete (Python $venv_version)"
        exit 0
    fi

    if [[ -d $venv && ! -f $venv/pyvenv.cfg && ! -f $venv/.setup-lock && -n $(ls -A "$venv") ]]; then
        die 3 "$venv holds files and is no Python environment: nothing is done there." \
            "Choose another place: FAIRSEQ_RESID_VENV=FOLDER scripts/setup.sh"
    fi
    # An environment that is there keeps its Python, unless another was asked for.
    if [[ -z $python ]]; then
        if [[ -n $venv_version && -x $venv/bin/python ]] && python_version=$(probe_python "$venv/bin/python"); then
            python=$venv/bin/python
        else
            find_python
        fi
    fi
    check_disk "$venv"
    check_compiler "$python"

    mkdir -p "$venv" || die 3 "$venv cannot be made. Choose another place: FAIRSEQ_RESID_VENV=FOLDER scripts/setup.sh"
    : >>"$venv/.setup-lock" || die 3 "$venv is not writable."
    if command -v flock >/dev/null 2>&1; then
        exec 9>>"$venv/.setup-lock"
        if ! flock -n 9; then
            say "another setup of $venv is at work; waiting for it"
            flock 9
            read_venv_version
            if is_done && [[ ${venv_version%.*} == "$python_version" ]]; then
                say "nothing to do: $venv is complete (Python $venv_version)"
                exit 0
            fi
        fi
    fi
    trap 'stopped 130' INT
    trap 'stopped 143' TERM HUP

    # What the stamp says is installed stays installed.
    if [[ -f $stamp ]] && grep -qx 'extras=test' "$stamp"; then extras="test"; fi
    rm -f "$stamp"
    : >"$log"
    say "Python $python_version ($python); log: $log"
    if [[ $(uname -s) == Linux && -z ${FAIRSEQ_RESID_TORCH:-} && ! -d $venv/lib/python$python_version/site-packages/torch ]] &&
        ! command -v nvidia-smi >/dev/null 2>&1; then
        say "no NVIDIA GPU seen: where the package index offers a CPU build of torch it is the smaller one (see --help)"
    fi
    if [[ $python == "$venv"/* ]]; then
        # Should the environment have to be made anew, it cannot be made by itself: the Python under it does that.
        python=$("$python" -I -c 'import sys, os; print(os.path.join(sys.base_prefix, "bin", "python%d.%d" % sys.version_info[:2]))')
    fi
    make_venv
    install_all
    read_venv_version
    print_stamp >"$stamp.partial"
    mv "$stamp.partial" "$stamp"
    say "done in $SECONDS s: $(sed -n '$p' "$log"), $(du -sm "$venv" | cut -f 1) MB. Activate it: source $venv/bin/activate"
}

main "$@"
