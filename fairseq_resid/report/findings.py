"""Claims of the two papers about their structures, each with the corresponding numbers of an analysed model.

The numbers describe one model. Readers must judge for themselves whether the numbers support the claim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from ..analysis.plots import stacks
from ..analysis.results import Analysis, Site

HALVES = ("lower half", "upper half")


@dataclass(frozen=True)
class Finding:
    """A claim of a paper, its source, and the numbers of one model."""

    claim: str
    source: str
    found: str


def mean_of(sites: Sequence[Site], name: str) -> float:
    return fmean(site.coefficients[name].mean for site in sites)


def halves(analysis: Analysis | None, stack: str) -> tuple[list[Site], list[Site]] | None:
    """Return the sites in the lower and in the upper half of a stack; None for a single layer."""
    sites = [site for site in (analysis.sites.values() if analysis else ()) if site.stack == stack]
    layers = 1 + max((site.layer for site in sites), default=0)
    if layers < 2:
        return None
    lower, upper = [s for s in sites if s.layer < layers // 2], [s for s in sites if s.layer >= (layers + 1) // 2]
    return (lower, upper) if lower and upper else None


def trend(analysis: Analysis, name: str, claim: str) -> Finding | None:
    """Compare a coefficient's mean between the halves of every stack."""
    found = []
    for stack in stacks(analysis):
        parts = halves(analysis, stack)
        if parts is not None and all(name in site.coefficients for part in parts for site in part):
            low, high = (mean_of(part, name) for part in parts)
            found.append(f"{stack} {HALVES[0]} {low:.2g}, {HALVES[1]} {high:.2g}")
    return Finding(claim, "SAS paper, section 5, figure 3", "; ".join(found)) if found else None


def open_gates(analysis: Analysis) -> Finding:
    sites = [site for site in analysis.sites.values() if "alpha" in site.coefficients]
    count = sum(site.coefficients["alpha"].mean > 0.9 for site in sites)
    starts = [start for site in sites if (start := site.coefficients["alpha"].start) is not None]
    begun = f", from {fmean(starts):.2f} at the start" if starts else ""
    found = f"α > 0.9 at {count} of {len(sites)} sites, mean {mean_of(sites, 'alpha'):.2f}{begun}"
    return Finding("α is above 0.9 nearly everywhere", "SAS paper, section 5, figure 3", found)


def spreads(analysis: Analysis) -> dict[str, float]:
    """Return the ratio of the largest to the smallest gradient norm of the sites, for each stack."""
    found = {}
    for stack, sites in stacks(analysis).items():
        if norms := [site.gradient for site in sites if site.gradient]:
            found[stack] = max(norms) / min(norms)
    return found


def flatness(analysis: Analysis, baseline: Analysis | None) -> Finding | None:
    """Compare the spread of gradient norms over each stack with the baseline's."""
    mine = spreads(analysis)
    theirs = spreads(baseline) if baseline else {}
    found = [
        f"{stack}: largest / smallest {ratio:.1f}" + (f", baseline {theirs[stack]:.1f}" if stack in theirs else "")
        for stack, ratio in mine.items()
    ]
    if not found:
        return None
    claim = "the gradient norm is flatter over depth than in the baseline"
    return Finding(claim, "rSkip paper, figure 3 (images)", "; ".join(found))


def more_below(analysis: Analysis, baseline: Analysis | None) -> Finding | None:
    """Compare the mean gradient norms of lower and upper sites with the baseline's."""
    found = []
    for stack in stacks(analysis):
        parts = halves(analysis, stack)
        if parts is None or any(site.gradient is None for part in parts for site in part):
            continue
        low, high = (fmean(site.gradient or 0.0 for site in part) for part in parts)
        line = f"{stack}: {HALVES[0]} {low:.2g}, {HALVES[1]} {high:.2g}"
        theirs = halves(baseline, stack)
        if theirs is not None and all(site.gradient is not None for part in theirs for site in part):
            below, above = (fmean(site.gradient or 0.0 for site in part) for part in theirs)
            line += f", baseline {below:.2g}, {above:.2g}"
        found.append(line)
    if not found:
        return None
    claim = "lower sites get larger gradients than upper sites, and all gradients are larger than in the baseline"
    return Finding(claim, "SAS paper, section 5, figure 4 (images)", "; ".join(found))


def ratio(analysis: Analysis) -> Finding:
    sites = [site for site in analysis.sites.values() if "ratio" in site.coefficients]
    values = [site.coefficients["ratio"].mean for site in sites]
    starts = [start for site in sites if (start := site.coefficients["ratio"].start) is not None]
    begun = f" (at the start {fmean(starts):.2f})" if starts else ""
    found = (
        f"mean {fmean(values):.2f}, median {median(values):.2f}{begun}; by site {min(values):.2f} to {max(values):.2f}"
    )
    claim = "the effective ratio of x to F is learned, 2.64 on average with λ = 2"
    return Finding(claim, "rSkip paper, section 4.3 (images)", found)


def ahead(analysis: Analysis, baseline: Analysis | None) -> Finding | None:
    """Compare the model's NLL with the baseline's, if both were analysed on the same examples."""
    examples = analysis.data, analysis.subset, analysis.sentences
    if baseline is None or examples != (baseline.data, baseline.subset, baseline.sentences):
        return None
    found = f"{analysis.nll:.3f} {analysis.amount}, baseline {baseline.nll:.3f}"
    claim = "it predicts better than the baseline (one run of each, not tested)"
    return Finding(claim, "both papers, in BLEU and error", found)


def off(analysis: Analysis) -> Finding | None:
    if all(site.nll_without is None for site in analysis.sites.values()):
        return None
    shut = analysis.off()
    found = f"not used: {len(shut)} of {len(analysis.sites)}" + (f": {', '.join(shut)}" if shut else "")
    return Finding("every branch is used", "this project's question", found)


def findings(analysis: Analysis, baseline: Analysis | None = None) -> list[Finding]:
    """Return the findings for a model, with the baseline's numbers if a baseline is given."""
    baseline = None if baseline is analysis else baseline
    names = {name for site in analysis.sites.values() for name in site.coefficients}
    made = [ahead(analysis, baseline)]
    if "alpha" in names:
        made.append(open_gates(analysis))
        made.append(trend(analysis, "beta", "β rises with depth"))
        made.append(trend(analysis, "gamma", "(1−α)(1−β) is larger in the lower layers"))
        made.append(more_below(analysis, baseline))
    if "ratio" in names:
        made.append(ratio(analysis))
    if "alpha" not in names:
        made.append(flatness(analysis, baseline))
    made.append(off(analysis))
    return [finding for finding in made if finding is not None]
