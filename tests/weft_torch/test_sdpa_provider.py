"""Weft as a provider of torch's flash attention. torch has it only on GPUs: elsewhere Weft's kernels are
registered for the CPU, and torch's own derivatives call them. WEFT_TEST_DEVICE=cuda runs it on a GPU."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402
from weft.torch import sdpa_provider  # noqa: E402

attention = pytest.importorskip("torch.nn.attention")
aten, F = torch.ops.aten, torch.nn.functional
DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")


@pytest.fixture
def active():
    """Weft's kernels in place, through torch's registry where there is one."""
    if not hasattr(attention, "register_flash_attention_impl"):
        pytest.skip(f"torch {torch.__version__} has no registry of flash attention")
    if DEVICE == "cuda":
        attention.activate_flash_attention_impl(weft_torch.register_sdpa())
        yield
        attention.restore_flash_attention_impl()
    else:
        provider = sdpa_provider.Provider("CPU")
        yield
        provider.remove()


def normal(*shape: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, device="cpu").to(DEVICE, torch.bfloat16).requires_grad_()


def close(found, expected) -> None:
    pairs = ([each.float() for each in values] for values in (found, expected))
    torch.testing.assert_close(*pairs, rtol=5e-2, atol=5e-2)


def in_double(q, k, v, causal: bool, scale=None):
    ends = (each.double() for each in (q, k, v))
    with attention.sdpa_kernel(attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(*ends, is_causal=causal, scale=scale, enable_gqa=True)


def test_torchs_derivatives_call_weft(active) -> None:
    q, k, v = normal(2, 4, 33, 16), normal(2, 2, 33, 16), normal(2, 2, 33, 16, seed=1)
    before = weft_torch.cache_info()
    o, lse, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=0.3)
    gradients = torch.autograd.grad(o.square().sum(), (q, k, v))
    after = weft_torch.cache_info()
    assert after["hits"] + after["misses"] == before["hits"] + before["misses"] + 2
    expected = in_double(q, k, v, True, 0.3)
    close([o, *gradients], [expected, *torch.autograd.grad(expected.square().sum(), (q, k, v))])
    assert lse.shape == (2, 4, 33)
    assert lse.dtype == torch.float32


def test_dropout_is_the_same_both_ways(active) -> None:
    q, k, v = normal(1, 2, 40, 16), normal(1, 2, 64, 16), torch.eye(64, device=DEVICE, dtype=torch.bfloat16)
    v = v.repeat(1, 2, 1, 1).requires_grad_()  # so that o is the weights
    o, *_ = aten._scaled_dot_product_flash_attention(q, k, v, 0.5)
    (dv,) = torch.autograd.grad(o.sum(), v)
    assert 0.4 < (o == 0).double().mean() < 0.6
    close([dv[..., 0]], [o.sum(2)])


def test_packed_sequences_as_torch_calls_them(active) -> None:
    q, kv = normal(9, 4, 16), normal(9, 2, 2, 16)
    at = torch.tensor([0, 2, 9], dtype=torch.int32, device=DEVICE)
    how = (at, at, 7, 7, 0.0, True, False)
    o, *_ = aten._flash_attention_forward(q, kv[:, 0], kv[:, 1], *how)
    gradients = torch.autograd.grad(o.square().sum(), (q, kv))
    parts = [
        in_double(*(each.transpose(0, 1)[None] for each in (q[s], kv[s, 0], kv[s, 1])), True)[0]
        for s in (slice(0, 2), slice(2, 9))
    ]
    expected = torch.cat(parts, 1).transpose(0, 1)
    close([o, *gradients], [expected, *torch.autograd.grad(expected.square().sum(), (q, kv))])
    into = torch.empty_like(o)
    if hasattr(aten, "_flash_attention_forward_no_dropout_inplace"):
        aten._flash_attention_forward_no_dropout_inplace(into, q, kv[:, 0], kv[:, 1], *how)
        assert torch.equal(into, o)
    rows = normal(2, 5, 4, 16)  # rows before heads
    o, *_ = aten._flash_attention_forward(rows, rows, rows, None, None, 5, 5, 0.0, False, False)
    expected = in_double(*[rows.transpose(1, 2)] * 3, False).transpose(1, 2)
    close([o, *torch.autograd.grad(o.square().sum(), rows)],
          [expected, *torch.autograd.grad(expected.square().sum(), rows)])  # fmt: skip


def test_registry_lists_the_engine_and_refusals_are_reported(active) -> None:
    assert weft_torch.register_sdpa("ANOTHER") in attention.list_flash_attention_impls()
    if DEVICE == "cpu":  # on a GPU, torch's own kernel is the fallback
        q = normal(1, 2, 4, 8)
        with pytest.raises(Exception, match="causal, with more or fewer keys than queries"):
            aten._scaled_dot_product_flash_attention(q[:, :, :2], q, q, 0.0, True)
        with pytest.raises(Exception, match="flash attention: return_debug_mask"):
            aten._scaled_dot_product_flash_attention(q, q, q, 0.0, False, True)


def test_without_a_registry_the_way_out_is_named(monkeypatch) -> None:
    monkeypatch.delattr(attention, "register_flash_attention_impl", raising=False)
    with pytest.raises(Exception, match=r"torch .* has no register_.* Use weft\.torch\.enable"):
        weft_torch.register_sdpa()
