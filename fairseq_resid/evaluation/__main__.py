"""`python -m fairseq_resid.evaluation` is `fairseq-resid evaluate`."""

import sys

from .evaluate import main

if __name__ == "__main__":
    sys.exit(main())
