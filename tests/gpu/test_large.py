"""More elements than 32 bits can count, in every kernel family, against torch a part at a time. Values are
whole and small where sums must be exact; the tensors have odd extents and are 2 to 4 GB each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import checks
import pytest

torch = checks.need_gpu()
ROWS, COLUMNS = 65537, 32771  # a little over 2^31 together
BF16, I8 = torch.bfloat16, torch.int8


@pytest.fixture(autouse=True)
def _memory_goes_back() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def whole(*shape: int, dtype: Any = BF16, most: int = 2) -> Any:
    """Random whole numbers from -most to most."""
    return torch.randint(-most, most + 1, shape, dtype=I8, device="cuda").to(dtype)


def normal(*shape: int) -> Any:
    return torch.empty(shape, dtype=BF16, device="cuda").normal_()


def parts(extent: int, count: int = 16) -> Iterator[slice]:
    """Splits an extent into slices, the last one first, because this file tests elements at large offsets."""
    step = -(-extent // count)
    for start in reversed(range(0, extent, step)):
        yield slice(start, min(start + step, extent))


def test_map() -> None:
    x, b = whole(ROWS, COLUMNS, dtype=I8, most=127), whole(1, COLUMNS, dtype=I8, most=127)
    y = checks.on_gpu(lambda g, x, b: g.max(x, b), x, b, out=["i8"])
    for rows in parts(ROWS):
        assert torch.equal(y[rows], torch.maximum(x[rows], b))


@pytest.mark.parametrize("dims", [[0], [1], [0, 1]])
def test_reductions(dims: list[int]) -> None:
    x = whole(ROWS, COLUMNS, dtype=I8, most=7)
    y = checks.on_gpu(lambda g, x: g.reduction(x, "ADD", dims=dims), x, out=["i32"], compute_data_type="i32")
    assert torch.equal(y, x.sum(dims, keepdim=True, dtype=torch.int32))


def test_rows() -> None:
    x = normal(ROWS, COLUMNS)
    y = checks.on_gpu(lambda g, x: g.softmax(x, axis=1), x, out=["bf16"])
    for rows in parts(ROWS, 64):
        want = torch.softmax(x[rows].float(), 1)
        torch.testing.assert_close(y[rows].float(), want, rtol=2**-8, atol=1e-9)


def test_window() -> None:
    x = normal(33, 2049, 1985, 16).permute(0, 3, 1, 2)
    pooling = {"mode": "MAXPOOL", "window": [3, 3], "stride": [2, 2], "pre_padding": [1, 1]}
    y = checks.on_gpu(lambda g, x: g.resample(x, **pooling, post_padding=[1, 1])[0], x, out=["bf16"])
    for images in parts(33, 33):
        assert torch.equal(y[images], torch.nn.functional.max_pool2d(x[images], 3, 2, 1))


def test_transpose() -> None:
    x = whole(ROWS, COLUMNS, dtype=I8, most=127)
    dims, strides = [COLUMNS, ROWS], [ROWS, 1]
    y = checks.on_gpu(lambda g, x: g.transpose(x, [1, 0]).set_dim(dims).set_stride(strides), x)
    for rows in parts(COLUMNS):
        assert torch.equal(y[rows], x[:, rows].t())


def test_concatenation() -> None:
    x, z = (whole(ROWS, columns, dtype=I8, most=127) for columns in (16386, 16385))
    y = checks.on_gpu(lambda g, x, z: g.concatenate([x, z], 1), x, z)
    for rows in parts(ROWS):
        assert torch.equal(y[rows], torch.cat((x[rows], z[rows]), 1))


def philox(counter: list[Any], key: int) -> Any:
    """Philox-4x32-10 of counters of 32-bit words in int64: [.., 4]."""
    low, keys = 0xFFFFFFFF, [key, 0]
    for _ in range(10):
        left, right = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        highs = [product >> 32 & low for product in (right, left)]
        counter = [highs[0] ^ counter[1] ^ keys[0], right & low, highs[1] ^ counter[3] ^ keys[1], left & low]
        keys = [keys[0] + 0x9E3779B9 & low, keys[1] + 0xBB67AE85 & low]
    return torch.stack(counter, -1)


def test_random_numbers() -> None:
    """Each row has its own blocks of four words; the number of elements exceeds 32 bits."""
    seed, offset = (torch.tensor([[number]], device="cuda") for number in (5, 7))
    half = {"distribution": "BERNOULLI", "bernoulli_probability": 0.5}
    y = checks.on_gpu(
        lambda g, seed, offset: g.rng(seed, offset, **half).set_dim([ROWS, COLUMNS]), seed, offset, out=["u8"]
    )
    per_row = -(-COLUMNS // 4)
    for rows in parts(ROWS, 64):
        index = torch.arange(rows.start * per_row, rows.stop * per_row, device="cuda")
        words = philox(
            [index & 0xFFFFFFFF, index >> 32, torch.full_like(index, 7), torch.zeros_like(index)], 5
        )
        want = words.view(-1, 4 * per_row)[:, :COLUMNS] >> 8 < 1 << 23
        assert torch.equal(y[rows], want.to(torch.uint8))


@pytest.mark.parametrize(("m", "n", "k", "dtype"), [(1048577, 8, 2056, "f32"), (ROWS, COLUMNS, 16, "bf16")])
def test_matmul(m: int, n: int, k: int, dtype: str) -> None:
    """A large factor, and a large product."""
    a, b = whole(1, m, k), whole(1, k, n)
    c = checks.on_gpu(lambda g, a, b: g.matmul(a, b), a, b, out=[dtype])
    for rows in parts(m, 64):
        assert torch.equal(c[:, rows].float(), a[:, rows].float() @ b.float())


def test_convolution() -> None:
    x = whole(2, 11586, 11587, 8, most=1).permute(0, 3, 1, 2)
    w = whole(8, 3, 3, 8, most=1).permute(0, 3, 1, 2)
    y = checks.on_gpu(lambda g, x, w: g.conv_fprop(x, w, padding=[1, 1]), x, w, out=["bf16"])
    padded = torch.nn.functional.pad
    for rows in parts(11586, 32):
        first, last = max(rows.start - 1, 0), min(rows.stop + 1, 11586)
        seen = padded(x[:, :, first:last].float(), (1, 1, first - rows.start + 1, rows.stop + 1 - last))
        assert torch.equal(y[:, :, rows].float(), torch.nn.functional.conv2d(seen, w.float()))


def test_attention() -> None:
    """More heads than a grid has blocks in its second dimension, forward and backward."""
    q, k, v, d_o = (normal(1025, 256, 64, 128) for _ in range(4))
    o, stats = checks.on_gpu(lambda g, q, k, v: g._sdpa_fwd(q, k, v, attn_scale_value=0.1), q, k, v)
    grads = checks.on_gpu(lambda g, *t: g._sdpa_bwd(*t, attn_scale_value=0.1), q, k, v, o, d_o, stats)
    for batches in parts(1025, 41):
        leaves = [each[batches].float().requires_grad_() for each in (q, k, v)]
        want = torch.softmax(0.1 * leaves[0] @ leaves[1].mT, -1) @ leaves[2]
        torch.testing.assert_close(o[batches].float(), want, rtol=2**-6, atol=2**-6)
        want.backward(d_o[batches].float())
        for got, leaf in zip(grads, leaves, strict=True):
            torch.testing.assert_close(got[batches].float(), leaf.grad, rtol=2**-5, atol=2**-5)
