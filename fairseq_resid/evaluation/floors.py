"""The old name of `python -m fairseq_resid.evaluation.baselines`."""

from ..commands.frame import renamed

if __name__ == "__main__":
    renamed("python -m fairseq_resid.evaluation.floors", "fairseq-resid baselines")
