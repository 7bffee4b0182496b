"""The limits of the proof of an export."""

from __future__ import annotations

import dataclasses

import pytest

from fairseq_resid.export.proof import NotEqual, Proof, token_differences


def test_proof_fails_beyond_its_limits() -> None:
    good = Proof("valid", 10, 100, 9e-4, 200, 198, beyond=1)
    good.check()
    for change in ({"largest": 1.1e-3}, {"largest": float("nan")}, {"identical": 197}, {"beyond": 2}):
        with pytest.raises(NotEqual):
            dataclasses.replace(good, **change).check()  # type: ignore[arg-type]
    assert token_differences([[-1.0, -2.0]], [[-1.5, -2.0]]) == [0.5, 0]
    with pytest.raises(NotEqual, match="log p is not a number"):
        token_differences([[-1.0, float("nan")]], [[-1.5, -2.0]])
