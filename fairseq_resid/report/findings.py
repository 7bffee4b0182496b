"""What the two papers say that their structures do, and what an analysis found of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from ..analysis.plots import stacks
from ..analysis.results import Analysis, Site

HALVES = ("lower half", "upper half")


@dataclass(frozen=True)
class Finding:
    """A claim of a paper, its source, what was found in one model, and whether that agrees; None: neither way."""

    claim: str
    source: str
    found: str
    agrees: bool | None


def mean_of(sites: Sequence[Site], name: str) -> float:
    return fmean(site.coefficients[name].mean for site in sites)


def halves(analysis: Analysis, stack: str) -> tuple[list[Site], list[Site]] | None:
    """Return the sites of the lower and the upper half of a stack's layers; None for a single layer."""
    sites = [site for site in analysis.sites.values() if site.stack == stack]
    layers = 1 + max((site.layer for site in sites), default=0)
    if layers < 2:
        return None
    return [s for s in sites if s.layer < layers // 2], [s for s in sites if s.layer >= (layers + 1) // 2]


def trend(analysis: Analysis, name: str, rises: bool, claim: str) -> Finding | None:
    """Compare a coefficient's mean between the halves of every stack."""
    found, agree = [], []
    for stack in stacks(analysis):
        parts = halves(analysis, stack)
        if parts is not None and all(name in site.coefficients for part in parts for site in part):
            low, high = (mean_of(part, name) for part in parts)
            found.append(f"{stack} {HALVES[0]} {low:.2f}, {HALVES[1]} {high:.2f}")
            agree.append((high > low) == rises)
    if not found:
        return None
    return Finding(
        claim, "SAS paper, section 5, figure 3", "; ".join(found), agree[0] if len(set(agree)) == 1 else None
    )


def open_gates(analysis: Analysis) -> Finding:
    sites = list(analysis.sites.values())
    count = sum(site.coefficients["alpha"].mean > 0.9 for site in sites)
    starts = [start for site in sites if (start := site.coefficients["alpha"].start) is not None]
    begun = f", from {fmean(starts):.2f} at the start" if starts else ""
    found = f"α > 0.9 at {count} of {len(sites)} sites, mean {mean_of(sites, 'alpha'):.2f}{begun}"
    agrees = True if count > 0.8 * len(sites) else False if count < 0.5 * len(sites) else None
    return Finding("α is above 0.9 nearly everywhere", "SAS paper, section 5, figure 3", found, agrees)


def spreads(analysis: Analysis) -> dict[str, float]:
    """Return the greatest gradient norm of each stack's sites over the least."""
    found = {}
    for stack in stacks(analysis):
        norms = [site.gradient for site in analysis.sites.values() if site.stack == stack and site.gradient]
        if norms:
            found[stack] = max(norms) / min(norms)
    return found


def flatness(analysis: Analysis, baseline: Analysis | None) -> Finding | None:
    """Say how much the gradient norm differs over a stack's sites, and whether less than in the baseline."""
    mine = spreads(analysis)
    theirs = spreads(baseline) if baseline is not None and baseline is not analysis else {}
    found = [
        f"{stack}: greatest over least {ratio:.1f}" + (f", baseline {theirs[stack]:.1f}" if stack in theirs else "")
        for stack, ratio in mine.items()
    ]
    if not found:
        return None
    flatter = {mine[stack] < theirs[stack] for stack in mine if stack in theirs}
    return Finding(
        "the gradient norm is flatter over depth than in the baseline",
        "rSkip paper, figure 3 (images)",
        "; ".join(found),
        flatter.pop() if len(flatter) == 1 else None,
    )


def more_below(analysis: Analysis, baseline: Analysis | None) -> Finding | None:
    """Say whether the lower sites get more gradient than the upper ones, and all sites more than the baseline's."""
    found, agree = [], []
    for stack in stacks(analysis):
        parts = halves(analysis, stack)
        if parts is None or any(site.gradient is None for part in parts for site in part):
            continue
        low, high = (fmean(site.gradient or 0.0 for site in part) for part in parts)
        line = f"{stack}: {HALVES[0]} {low:.2g}, {HALVES[1]} {high:.2g}"
        theirs = halves(baseline, stack) if baseline is not None and baseline is not analysis else None
        if theirs is not None and all(site.gradient is not None for part in theirs for site in part):
            below, above = (fmean(site.gradient or 0.0 for site in part) for part in theirs)
            line += f", baseline {below:.2g}, {above:.2g}"
            agree.append(low > high and low + high > below + above)
        found.append(line)
    if not found:
        return None
    return Finding(
        "lower sites get more gradient than upper ones, and all more than in the baseline",
        "SAS paper, section 5, figure 4 (images)",
        "; ".join(found),
        agree[0] if len(set(agree)) == 1 else None,
    )


def ratio(analysis: Analysis) -> Finding:
    sites = [site for site in analysis.sites.values() if "ratio" in site.coefficients]
    mean = mean_of(sites, "ratio")
    starts = [start for site in sites if (start := site.coefficients["ratio"].start) is not None]
    begun = f", {fmean(starts):.2f} at the start" if starts else ""
    least, most = (pick(site.coefficients["ratio"].mean for site in sites) for pick in (min, max))
    found = f"mean {mean:.2f}{begun}; by site {least:.2f} to {most:.2f}"
    claim = "the effective ratio of x to F is learned, 2.64 on average with λ = 2"
    agrees = abs(mean - 2.64) < 0.5 if analysis.options.get("skip_lambda") == 2 else None
    return Finding(claim, "rSkip paper, section 5 (images)", found, agrees)


def ahead(analysis: Analysis, baseline: Analysis | None) -> Finding | None:
    """Compare the model's NLL with the baseline's, if both were read on the same text."""
    if baseline is None or baseline is analysis:
        return None
    if (analysis.data, analysis.subset, analysis.sentences) != (baseline.data, baseline.subset, baseline.sentences):
        return None
    found = f"{analysis.nll:.3f} {analysis.amount}"
    found += f", baseline {baseline.nll:.3f}"
    claim = "it predicts better than the baseline (one run of each: no test)"
    return Finding(claim, "both papers, in BLEU and error", found, analysis.nll < baseline.nll)


def off(analysis: Analysis) -> Finding | None:
    if all(site.nll_without is None for site in analysis.sites.values()):
        return None
    shut = analysis.off()
    found = f"{len(shut)} of {len(analysis.sites)}" + (f": {', '.join(shut)}" if shut else "")
    return Finding("every branch is used", "our own question", found, not shut)


def findings(analysis: Analysis, baseline: Analysis | None = None) -> list[Finding]:
    """Return what can be said of one model, beside the baseline's if there is one."""
    names = {name for site in analysis.sites.values() for name in site.coefficients}
    made: list[Finding | None] = [ahead(analysis, baseline)]
    if "alpha" in names:
        claims: list[tuple[str, bool, str]] = [
            ("beta", True, "β rises with depth"),
            ("gamma", False, "(1−α)(1−β) is larger low in the stack"),
        ]
        made += [open_gates(analysis), *(trend(analysis, *claim) for claim in claims)]
    if "ratio" in names:
        made.append(ratio(analysis))
    made += [more_below(analysis, baseline) if "alpha" in names else flatness(analysis, baseline), off(analysis)]
    return [finding for finding in made if finding is not None]
