"""The differences between the structures of two models, from their configs."""

from __future__ import annotations

from typing import Any

from .options import flag
from .registry import canonical, names, options, resolve, structure, uses_norm


def function_differences(one: Any, other: Any) -> tuple[str, str] | None:
    """Return the flags in which the structures of two models differ, from the models' configs.

    None means that the structures compute the same with the same weights, or that one of the models has another
    architecture or an unknown structure. The names and shapes of the weights do not tell: those of post_ln fit
    deep_norm. Options that only set initial values are ignored.
    """
    flags = [_function_flags(cfg) for cfg in (one, other)]
    differing = [name for name in flags[0] if name in flags[1] and flags[0][name] != flags[1][name]]
    if not differing or _simplest(one, flags[0]) == _simplest(other, flags[1]):
        return None
    first, second = (" ".join(f"{name} {each[name]}" for name in differing) for each in flags)
    return first, second


def _function_flags(cfg: Any) -> dict[str, Any]:
    """Return the flags on which the structure of a model with given weights depends; none if it has no known structure.

    The config may be that of an older checkpoint, or of stock `transformer`, whose structure is pre_ln or post_ln.
    """
    if not hasattr(cfg, "residual") and not hasattr(cfg, "encoder_normalize_before"):
        return {}
    stock = "pre_ln" if getattr(cfg, "encoder_normalize_before", False) else "post_ln"
    name = getattr(cfg, "residual", None) or stock
    if name not in names():
        return {}
    residual = canonical(name)
    known = options(residual)
    resolved = resolve(residual, {option: getattr(cfg, option, None) for option in known})
    chosen = {"residual": residual}
    if uses_norm(residual, resolved, getattr(cfg, "final_norm", None) == "layer"):
        chosen["norm"] = getattr(cfg, "norm", None) or "layer"
    chosen |= {option: value for option, value in resolved.values().items() if not known[option].is_initial}
    return {flag(option): value for option, value in chosen.items()}


def _simplest(cfg: Any, flags: dict[str, Any]) -> dict[str, Any]:
    """Return the flags of a model, or those of the structure without options that computes the same (same_as)."""
    name = flags.get("--residual")
    if name is None:
        return flags
    made = structure(name)
    same = made.same_as(resolve(name, {option: getattr(cfg, option, None) for option in made.options.known()}))
    return flags if same is None else {"--residual": same, "--norm": flags["--norm"]}
