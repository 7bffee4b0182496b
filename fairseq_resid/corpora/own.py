"""The old name of `python -m fairseq_resid.corpora.custom`."""

from ..commands.frame import renamed

if __name__ == "__main__":
    renamed("python -m fairseq_resid.corpora.own", "fairseq-resid prepare custom")
