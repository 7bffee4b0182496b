"""The chunked label-smoothed cross-entropy, compared with the formula on all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_resid.ops import chunked_label_smoothed_cross_entropy

pytestmark = pytest.mark.once

TOKENS, WORDS, C = 70, 203, 24


def inputs(dtype=torch.float64, tokens=TOKENS, words=WORDS):
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(tokens, C, generator=generator, dtype=torch.float64)
    weight = torch.randn(words, C, generator=generator, dtype=torch.float64) * C**-0.5
    target = torch.randint(0, words, (tokens,), generator=generator)
    return hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_(), target


def formula(hidden, weight, target, smoothing):
    """Return the loss and the NLL with a loop over the tokens: every other word has the probability ε/(V − 1)."""
    loss = nll = 0.0
    for h, word in zip(hidden, target.tolist(), strict=True):
        surprise = torch.logsumexp(weight @ h, 0) - weight @ h
        wanted = torch.full_like(surprise, smoothing / (len(weight) - 1))
        wanted[word] = 1 - smoothing
        loss, nll = loss + (wanted * surprise).sum(), nll + surprise[word]
    return loss, nll


def at_once(hidden, weight, target, smoothing=0.1):
    """Return the loss as fairseq computes it, with the logits of all tokens in the dtype of the model."""
    log_probabilities = torch.log_softmax(hidden @ weight.t(), -1, dtype=torch.float32)
    other = smoothing / (len(weight) - 1)
    nll = -log_probabilities.gather(1, target.unsqueeze(1)).sum()
    return (1 - smoothing - other) * nll - other * log_probabilities.sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("rows", [1, 16, 70, 512])
def test_values_and_gradients_are_those_of_the_formula(smoothing, rows):
    hidden, weight, target = inputs()
    found = chunked_label_smoothed_cross_entropy(hidden, weight, target, smoothing, rows)
    expected = formula(hidden, weight, target, smoothing)
    torch.testing.assert_close(torch.stack(found), torch.stack(expected))
    assert not found[1].requires_grad
    mine, theirs = (torch.autograd.grad(3 * loss, (hidden, weight)) for loss in (found[0], expected[0]))
    torch.testing.assert_close(mine, theirs)


def test_gradients_pass_gradcheck():
    hidden, weight, target = inputs(tokens=7, words=11)
    assert torch.autograd.gradcheck(
        lambda h, w: chunked_label_smoothed_cross_entropy(h, w, target, 0.1, rows=3)[0], (hidden, weight)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_lower_precision_is_as_exact_as_all_logits_at_once(dtype):
    hidden, weight, target = inputs(dtype)
    exact = inputs(dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in exact[:2]]
    reference = torch.autograd.grad(formula(*exact, target, 0.1)[0], exact)
    loss, nll = chunked_label_smoothed_cross_entropy(hidden, weight, target, 0.1, rows=16)
    assert loss.dtype == nll.dtype == torch.float32
    mine = torch.autograd.grad(loss, (hidden, weight))
    theirs = torch.autograd.grad(at_once(hidden, weight, target), (hidden, weight))
    for found, other, true in zip(mine, theirs, reference, strict=True):
        assert found.dtype == dtype
        error, allowed = ((each.double() - true).abs().max() for each in (found, other))
        assert error <= 1.5 * allowed


@pytest.mark.parametrize("loss_scale", [1.0, 128.0, 32_768.0])
def test_fp16_gradients_equal_those_of_all_logits_at_once(loss_scale):
    """With 37,000 types, most gradients of the logits are smaller than the smallest normal number of fp16."""
    hidden, weight, target = inputs(torch.float16, words=37_000)
    exact = [tensor.detach().double().requires_grad_() for tensor in (hidden, weight)]
    true = torch.autograd.grad(loss_scale * at_once(*exact, target).double(), exact)
    loss, _ = chunked_label_smoothed_cross_entropy(hidden, weight, target, 0.1, rows=16)
    mine = torch.autograd.grad(loss_scale * loss, (hidden, weight))
    theirs = torch.autograd.grad(loss_scale * at_once(hidden, weight, target), (hidden, weight))
    for found, other, expected in zip(mine, theirs, true, strict=True):
        assert torch.equal(found.isinf(), other.isinf())
        finite = ~found.isinf()
        rounding = torch.finfo(torch.float16).eps * expected.abs().max() + torch.finfo(torch.float16).smallest_normal
        error, allowed = ((each.double() - expected)[finite].abs().max() for each in (found, other))
        assert error <= max(rounding, 1.1 * allowed)


def test_fp16_does_not_overflow_when_all_targets_are_one_word():
    hidden, weight = torch.full((3000, 8), 20.0).half(), torch.full((50, 8), 0.01).half()
    hidden.requires_grad_(), weight.requires_grad_()
    loss, _ = chunked_label_smoothed_cross_entropy(hidden, weight, torch.zeros(3000, dtype=torch.long), 0.1)
    gradients = torch.autograd.grad(loss, (hidden, weight))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert gradients[1][0].float().mean().item() == pytest.approx(3000 * 20 * (1 / 50 - 0.9), rel=1e-2)


def test_autocast_multiplies_in_its_dtype_and_returns_the_dtypes_of_the_inputs():
    hidden, weight, target = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, _ = chunked_label_smoothed_cross_entropy(hidden, weight, target, 0.1)
        expected = at_once(hidden, weight, target)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)
    mine, theirs = (torch.autograd.grad(each, (hidden, weight)) for each in (loss, expected))
    for found, other in zip(mine, theirs, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, other, rtol=0, atol=float(0.02 * other.abs().max()))


@pytest.mark.parametrize("loss_scale", [1e-6, 1e6])
def test_scale_of_the_loss_may_be_beyond_the_range_of_fp16(loss_scale):
    hidden, weight, target = inputs(torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        loss, _ = chunked_label_smoothed_cross_entropy(hidden, weight, target, 0.1)
    expected = torch.autograd.grad(loss_scale * at_once(hidden, weight, target), (hidden, weight))
    for found, other in zip(torch.autograd.grad(loss_scale * loss, (hidden, weight)), expected, strict=True):
        torch.testing.assert_close(found, other, rtol=0, atol=float(0.01 * other.abs().max()))


def test_no_tensor_is_as_large_as_the_logits():
    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            sizes.extend(each.numel() for each in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(each))
            return result

    saved = []
    hidden, weight, target = inputs(torch.float32)
    with Sizes(), torch.autograd.graph.saved_tensors_hooks(lambda each: saved.append(each) or each, lambda each: each):
        loss, _ = chunked_label_smoothed_cross_entropy(hidden, weight, target, 0.1, rows=16)
    loss.backward()
    assert max(sizes) == WORDS * C < TOKENS * WORDS  # the weights
    assert sum(each.numel() for each in saved) == TOKENS * C + WORDS * C + 1


def test_without_gradients_nothing_is_computed_for_them():
    hidden, weight, target = inputs(torch.float32)
    with torch.no_grad():
        loss, nll = chunked_label_smoothed_cross_entropy(hidden, weight, target, 0.1)
    expected = formula(hidden, weight, target, 0.1)
    assert not loss.requires_grad
    torch.testing.assert_close(torch.stack((loss, nll)), torch.stack(expected).detach())


def test_no_tokens_give_zero_and_zero_gradients():
    hidden, weight, target = inputs(tokens=0)
    loss, nll = chunked_label_smoothed_cross_entropy(hidden, weight, target, 0.1)
    assert (loss.item(), nll.item()) == (0.0, 0.0)
    assert not torch.autograd.grad(loss, weight)[0].any()


def test_large_logits_stay_finite():
    hidden, weight, target = inputs(torch.float32)
    loss, nll = chunked_label_smoothed_cross_entropy(1e4 * hidden, weight, target, 0.1)
    assert torch.stack((loss, nll)).isfinite().all()
    torch.testing.assert_close(
        loss.double(), formula(*(each.double() for each in (1e4 * hidden, weight)), target, 0.1)[0], rtol=1e-5, atol=0
    )
