"""Attention over packed sequences, over pages, and merged from parts, compared with torch's attention over
each sequence in double precision. WEFT_TEST_DEVICE=cuda runs it on a GPU."""

from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")
import weft.torch as weft_torch  # noqa: E402

F, weft = torch.nn.functional, torch.ops.weft
DEVICE = os.environ.get("WEFT_TEST_DEVICE", "cpu")
NEAR = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 4e-2}


def normal(*shape: int, dtype=torch.float64, seed: int = 0):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    made = torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")
    return made.to(DEVICE, dtype).requires_grad_()


def close(found, expected, dtype=torch.float64) -> None:
    pairs = ([each.double() for each in values] for values in (found, expected))
    torch.testing.assert_close(*pairs, rtol=NEAR[dtype], atol=NEAR[dtype])


def sequence(q, k, v, left: int = -1, right: int = -1, scale=None):
    """Attention over one sequence, [rows, heads, elements], windows counted from its end; and statistics."""
    q, k, v = (each.double().transpose(0, 1) for each in (q, k, v))
    k, v = (each.repeat_interleave(q.shape[0] // each.shape[0], 0) for each in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    rows, keys = scores.shape[-2:]
    col, row = (torch.arange(n, device=q.device) for n in (keys, rows))
    at = row[:, None] + keys - rows
    hidden = torch.zeros(rows, keys, dtype=torch.bool, device=q.device)
    hidden |= (col < at - left) if left >= 0 else hidden
    hidden |= (col > at + right) if right >= 0 else hidden
    scores = scores.masked_fill(hidden, -torch.inf)
    return (scores.softmax(-1).nan_to_num() @ v).transpose(0, 1), scores.logsumexp(-1)


LENGTHS, KEYS = (3, 1, 40, 7), (5, 1, 40, 9)


def starts(lengths, dtype=torch.int32):
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("band", "as_band"), [((), (-1, -1)), ((True,), (-1, 0)), ((False, 4, 2), (4, 2)), ((True, 0), (0, 0))]
)
def test_packed_sequences(band, as_band, dtype) -> None:
    q = normal(sum(LENGTHS), 4, 16, dtype=dtype)
    kv = normal(sum(KEYS), 2, 2, 16, dtype=dtype)  # keys interleaved with values: tokens have gaps
    do = normal(sum(LENGTHS), 4, 16, dtype=dtype, seed=1).detach()
    expected = [
        sequence(*each, *as_band)
        for each in zip(q.split(LENGTHS), kv[:, 0].split(KEYS), kv[:, 1].split(KEYS), strict=True)
    ]
    parts = zip(*expected, strict=True)
    expected_o, expected_lse = (torch.cat(each, dim) for dim, each in enumerate(parts))
    layout = (starts(LENGTHS), starts(KEYS), max(LENGTHS), max(KEYS))
    o, lse = weft.sdpa_varlen(q, kv[:, 0], kv[:, 1], *layout, None, *band)
    found = torch.autograd.grad(o, (q, kv), do)
    close([o, lse, *found], [expected_o, expected_lse, *torch.autograd.grad(expected_o, (q, kv), do)], dtype)


@pytest.mark.parametrize("longest", [0, 4])
def test_packed_sequences_without_keys(longest) -> None:
    """All queries see nothing: results and gradients are 0."""
    q, k, v = normal(5, 2, 16), normal(0, 2, 16), normal(0, 2, 24)
    o, lse = weft.sdpa_varlen(q, k, v, starts((2, 3)), starts((0, 0)), 3, longest)
    assert (o == 0).all()
    assert (lse == -torch.inf).all()
    assert [each.shape for each in (o, lse)] == [(5, 2, 24), (2, 5)]
    dq, dk, dv = torch.autograd.grad(o.sum(), (q, k, v))
    assert (dq == 0).all()
    assert (dk.shape, dv.shape) == (k.shape, v.shape)


def test_packed_operators_pass_the_librarys_checks() -> None:
    x, at = normal(6, 2, 4), starts((4, 2), torch.int64)
    torch.library.opcheck(weft.sdpa_varlen.default, (x, x, x, at, at, 4, 4))
    assert torch.autograd.gradcheck(lambda x: weft.sdpa_varlen(x, x, x, at, at, 4, 4, 0.7, True)[0], [x])
    table = torch.zeros(2, 1, dtype=torch.int32, device=DEVICE)
    pages = [each.detach() for each in (normal(2, 2, 3, 4), normal(1, 2, 5, 4), normal(1, 2, 5, 4, seed=1))]
    torch.library.opcheck(weft.sdpa_paged.default, (*pages, table, starts((3,))))
    o, lse = normal(2, 3, 4), normal(2, 3)
    parts = (o, lse, normal(2, 3, 4, seed=1), normal(2, 3, seed=1))
    torch.library.opcheck(weft.merge.default, parts)
    assert torch.autograd.gradcheck(weft_torch.merge, parts)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("rows", "causal"), [(1, False), (3, True)])
def test_pages(rows: int, causal: bool, dtype) -> None:
    lengths, size = (13, 4, 30), 8
    k, v = (normal(12, size, 2, 16, dtype=dtype, seed=i).detach() for i in range(2))
    k[11], v[11] = torch.nan, torch.nan  # nobody's page
    q = normal(3, 4, rows, 16, dtype=dtype).detach()
    table = torch.tensor([[3, 7, 11, 11], [0, 11, 11, 11], [10, 1, 5, 2]], dtype=torch.int32, device=DEVICE)
    used = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    o, lse = weft.sdpa_paged(q, k.transpose(1, 2), v.transpose(1, 2), table, used, None, causal)
    for b, length in enumerate(lengths):
        ends = (each[table[b].long()].flatten(0, 1)[:length] for each in (k, v))
        expected, statistics = sequence(q[b].transpose(0, 1), *ends, -1, 0 if causal else -1)
        close([o[b].transpose(0, 1), lse[b]], [expected, statistics], dtype)


def test_parts_merge_to_the_whole_and_so_do_their_gradients() -> None:
    q, k, v = normal(2, 4, 6, 8), normal(2, 2, 21, 8), normal(2, 2, 21, 8, seed=1)
    do, dlse = normal(2, 4, 6, 8, seed=2).detach(), normal(2, 4, 6, seed=3).detach()
    whole = weft.sdpa(q, k, v, enable_gqa=True)
    merged = None
    for part in (slice(0, 5), slice(5, 6), slice(6, 21)):
        found = weft.sdpa(q, k[:, :, part], v[:, :, part], enable_gqa=True)
        merged = found if merged is None else weft_torch.merge(*merged, *found)
    expected = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    close([merged[0], merged[1]], [expected, whole[1]])
    given = (q, k, v)
    gradients = torch.autograd.grad(merged, given, (do, dlse), retain_graph=True)
    close(gradients, torch.autograd.grad(whole, given, (do, dlse)))
    # As on a ring of devices: each part's gradients are computed from the merged results.
    o, lse = (each.detach() for each in merged)
    plain = torch.autograd.grad(expected, given, do)
    dq = torch.zeros_like(q)
    for part in (slice(0, 9), slice(9, 21)):
        ends = (k[:, :, part].detach(), v[:, :, part].detach())
        how = (None, 0.0, False, None, None, False)
        mine, dk, dv, _ = weft.sdpa_backward(do, q.detach(), *ends, o, lse, *how)
        dq += mine
        close([dk, dv], [plain[1][:, :, part], plain[2][:, :, part]])
    close([dq], plain[:1])


def test_a_part_without_keys_adds_nothing() -> None:
    o, none = normal(2, 3, 4), torch.zeros(2, 3, 4, dtype=torch.float64, device=DEVICE)
    lse, low = normal(2, 3), torch.full((2, 3), -torch.inf, dtype=torch.float64, device=DEVICE)
    merged = weft_torch.merge(o, lse, none, low)
    close(merged, (o, lse))
    gradients = torch.autograd.grad(merged, (o, lse), (o, lse))
    close(gradients, (o, lse))
    nothing = weft_torch.merge(none, low, none, low)
    assert torch.equal(nothing[0], none)
    assert torch.equal(nothing[1], low)


def test_refusals() -> None:
    x, at = normal(6, 2, 4).detach(), starts((4, 2))
    with pytest.raises(Exception, match=r"sdpa_varlen: expected query .* got \[6, 2, 4\], 3 and 2 elements"):
        weft.sdpa_varlen(x, x, x, at, at[:2], 4, 4)
    with pytest.raises(Exception, match="operands do not broadcast"):
        weft_torch.merge(x, x[0, :, 0], x, x[..., 0])
