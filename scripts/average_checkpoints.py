#!/usr/bin/env python3
"""Average the weights of several checkpoints; --help says how.

Any Python runs this file. environment.sh then finds the project's, as for the other scripts;
everything is done by `fairseq-resid average`.
"""

import os
import sys

START = 'set -euo pipefail; . "$0/environment.sh"; exec "$python" -m fairseq_resid average "$@"'

if __name__ == "__main__":
    # Without an environment, environment.sh tries python3: make that the Python that runs this file.
    os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    os.execvp("bash", ["bash", "-c", START, os.path.dirname(os.path.realpath(__file__)), *sys.argv[1:]])
