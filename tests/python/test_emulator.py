"""The GPU in software: every rule that it checks is seen to fail with its message, and correct programs give
the results that PTX defines."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import emulated_kernel
import ml_dtypes
import numpy as np
import pytest
from emulated_kernel import INVALID_IMAGE, LAUNCH_FAILED, Gpu, module

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NumPy's, of infinities and NaN

SOURCES = Path(__file__).parents[1] / "emulator"
SEEDS = range(1, 9)
HALF, BF16, E4M3, E5M2 = np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return Gpu()


class Fault:
    """The error of a launch."""

    def __init__(self, text: str, said: str) -> None:
        self.lines = text.splitlines()
        self.said = said.removeprefix("fake_cuda: ").rstrip("\n")

    def where(self, line: str) -> str:
        """Formats a line of the text as messages do."""
        number = next(i for i, text in enumerate(self.lines) if text.lstrip() == line)
        return f"PTX line {number + 1}: {line}"

    def expect(self, words: str, line: str, warp: int = 0, block: int = 0) -> None:
        assert self.said == f"kernel 'k', block [{block},0,0], warp {warp}: {words}. {self.where(line)}"


@pytest.fixture
def fails(gpu: Gpu, capfd: pytest.CaptureFixture[str]) -> Callable[..., Fault]:
    """Runs a kernel's body on numbers as arguments, and returns the message of the failed launch."""

    def run(body: str, *arguments: Any, shared: int = 0, **shape: int) -> Fault:
        text = module(body, len(arguments), shared)
        gpu.launch(text, arguments, wants=LAUNCH_FAILED, **shape)
        return Fault(text, capfd.readouterr().err)

    return run


@pytest.fixture
def tries(
    gpu: Gpu, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., set[str]]:
    """Runs it under several seeds; returns the messages of all failures, without their locations."""

    def run(body: str, *arguments: Any, shared: int = 0, **shape: int) -> set[str]:
        said = set()
        for seed in SEEDS:
            monkeypatch.setenv("EMULATOR_SEED", str(seed))
            text = module(body, len(arguments), shared)
            try:
                gpu.launch(text, arguments, **shape)
            except AssertionError:
                said.add(capfd.readouterr().err.split(": ", 2)[2].split(". PTX")[0].rstrip("\n"))
        return said

    return run


@pytest.fixture
def memory(gpu: Gpu) -> Any:
    """Allocates bytes, until the test ends."""
    taken: list[int] = []

    def allocate(size: int) -> int:
        taken.append(gpu.allocate(size))
        return taken[-1]

    yield allocate
    for address in taken:
        gpu.free(address)


# ---- Memory ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", ["ld.global.u32 %r1, [%d0+40];", "st.global.u32 [%d0+40], %r0;",
                                    "atom.global.add.u32 %r1, [%d0+40], %r0;"])  # fmt: skip
def test_an_element_beyond_an_allocation(fails: Any, memory: Any, access: str) -> None:
    address = memory(40)
    words = f"4 bytes at 0x{address + 40:x}, 40 bytes into an allocation of 40"
    fails(access, address).expect(words, access)


def test_half_beyond_an_allocation(fails: Any, memory: Any) -> None:
    address, access = memory(40), "ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0+32];"
    words = f"16 bytes at 0x{address + 32:x}, 32 bytes into an allocation of 40"
    fails(access, address).expect(words, access)


def test_memory_that_was_freed(gpu: Gpu, fails: Any) -> None:
    address, access = gpu.allocate(64), "ld.global.u32 %r1, [%d0+4];"
    gpu.free(address)
    words = f"4 bytes at 0x{address + 4:x}, 4 bytes into an allocation of 64, which was freed"
    fails(access, address).expect(words, access)


def test_memory_that_never_was(fails: Any) -> None:
    access = "ld.global.u32 %r1, [%d0];"
    fails(access, 4096).expect("4 bytes at 0x1000, where nothing is allocated", access)


def test_what_is_not_aligned(fails: Any, memory: Any) -> None:
    address, access = memory(40), "ld.global.u32 %r1, [%d0+2];"
    fails(access, address).expect(f"4 bytes at 0x{address + 2:x}, which is not aligned", access)
    access = "st.shared.v2.u32 [s+4], {%r0, %r0};"
    fails(access, shared=64).expect("8 bytes at shared address 4, which is not aligned", access)


@pytest.mark.parametrize("access", ["ld.shared.u32 %r1, [s+64];", "st.shared.u32 [s+64], %r0;"])
def test_shared_memory_beyond_its_size(fails: Any, access: str) -> None:
    fails(access, shared=64).expect("4 bytes at shared address 64 of 64", access)


def test_a_kernels_arguments_end(fails: Any) -> None:
    access = "ld.param.u64 %d1, [args+128];"
    fails(access, 0).expect("8 bytes at byte 128 of 128 of arguments", access)


def test_generic_addresses_reach_shared_memory(fails: Any) -> None:
    body = "mov.u64 %d1, s;\ncvta.shared.u64 %d1, %d1;\nld.u32 %r1, [%d1+64];"
    fails(body, shared=64).expect("4 bytes at shared address 64 of 64", "ld.u32 %r1, [%d1+64];")


def test_a_trap(fails: Any) -> None:
    fails("trap;").expect("'trap'", "trap;")


# ---- Lanes and warps ---------------------------------------------------------------------------------------

HALF_OF_A_WARP = "setp.lt.u32 %p1, %r0, 16;\n"


def test_a_lane_shuffles_from_one_that_takes_no_part(fails: Any) -> None:
    shuffle = "shfl.sync.idx.b32 %r1, %r0, 20, 31, 0xffff;"
    fault = fails(f"{HALF_OF_A_WARP}@!%p1 bra over;\n{shuffle}\nover:")
    fault.expect("lane 0 reads a register of lane 20, which does not take part", shuffle)


def test_lanes_that_are_named_but_do_not_take_part(fails: Any) -> None:
    vote = "@%p1 vote.sync.ballot.b32 %r1, %p1, 0xffffffff;"
    fault = fails(HALF_OF_A_WARP + vote)
    fault.expect("lanes 0x0000ffff take part, lanes 0xffffffff should", vote)


def test_lanes_that_do_not_name_themselves(fails: Any) -> None:
    meet = "bar.warp.sync 0xffff;"
    fails(meet).expect("lanes 0xffffffff take part, lanes 0x0000ffff should", meet)


def test_lanes_that_meet_in_different_places(fails: Any) -> None:
    fault = fails(HALF_OF_A_WARP + "@%p1 bra low;\nbar.sync 0;\nbra over;\nlow:\nbar.sync 1;\nover:")
    assert "warp 0: lanes wait for each other in different places (mask 0xffffffff). PTX line" in fault.said


WARPS = "shr.u32 %r1, %r0, 5;\nsetp.eq.u32 %p1, %r1, 0;\n"


def test_a_barrier_with_two_counts(fails: Any) -> None:
    body = WARPS + "selp.u32 %r2, 64, 96, %p1;\nbar.sync 1, %r2;\nbar.sync 1, 96;"
    said = fails(body, threads=96).said
    assert any(
        f"barrier 1 is for {a} threads, others said {b} (0: all)" in said for a, b in ((64, 96), (96, 64))
    )


def test_a_barrier_for_more_threads_than_there_are(fails: Any) -> None:
    barrier = "bar.sync 1, 128;"
    fails(barrier).expect("barrier 1 is for 128 threads of a block of 32", barrier)


@pytest.mark.parametrize(
    ("operands", "words"), [("16", "barrier 16 of 0 threads"), ("1, 40", "barrier 1 of 40 threads")]
)
def test_barriers_that_there_are_not(fails: Any, operands: str, words: str) -> None:
    fails(f"bar.sync {operands};").expect(words, f"bar.sync {operands};")


def test_a_barrier_that_never_completes_fails(fails: Any) -> None:
    fault = fails(WARPS + "@!%p1 bra over;\nbar.sync 1, 64;\nover:", threads=64)
    place = fault.where("bar.sync 1, 64;")
    assert fault.said == f"kernel 'k' stands still:\n  block [0,0,0] warp 0 at a barrier, {place}"


WAIT = "mbarrier.try_wait.parity.shared::cta.b64 %p2, [s], 0;"
WAIT_AT_S = f"again:\n{WAIT}\n@!%p2 bra again;"
THREAD_0 = "setp.eq.u32 %p3, %r0, 0;\n"
INIT_S = f"{THREAD_0}@%p3 mbarrier.init.shared::cta.b64 [s], 1;\nbar.sync 0;\n"


def test_an_arrival_that_never_comes(fails: Any) -> None:
    fault = fails(INIT_S + WAIT_AT_S, shared=64, threads=64)
    place = fault.where(WAIT)
    lines = [f"  block [0,0,0] warp {warp} waits, {place}" for warp in (0, 1)]
    assert fault.said == "\n".join(["kernel 'k' stands still:", *lines])


def test_who_goes_round_for_ever(fails: Any, memory: Any, gpu: Gpu) -> None:
    address = memory(4)
    gpu.run("", np.zeros(1, "u4"))
    fault = fails(
        "again:\nld.acquire.gpu.global.u32 %r1, [%d0];\nsetp.ne.u32 %p1, %r1, 77;\n@%p1 bra again;", address
    )
    assert fault.said.startswith("kernel 'k' stands still:\n  block [0,0,0] warp 0 goes round, PTX line ")


# ---- Barriers in shared memory -----------------------------------------------------------------------------


@pytest.mark.parametrize("use", ["mbarrier.arrive.shared::cta.b64 _, [s];", WAIT,
                                 "mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 16;"])  # fmt: skip
def test_a_barrier_that_was_not_initialised(fails: Any, use: str) -> None:
    fails(use, shared=64).expect("a barrier that was not initialised, or was written over", use)


def test_a_barrier_that_was_written_over(fails: Any) -> None:
    arrive = "mbarrier.arrive.shared::cta.b64 _, [s];"
    fault = fails(f"{INIT_S}st.shared.u64 [s], 0;\n{arrive}", shared=64)
    fault.expect("a barrier that was not initialised, or was written over", arrive)


def test_more_arrivals_than_a_barrier_waits_for(fails: Any) -> None:
    arrive = "@%p3 mbarrier.arrive.shared::cta.b64 _, [s], 2;"
    fails(INIT_S + arrive, shared=64).expect("2 arrivals at a barrier that waits for 1", arrive)


def test_barriers_that_cannot_be(fails: Any) -> None:
    init = "mbarrier.init.shared::cta.b64 [s], 0;"
    fails(init, shared=64).expect("a barrier for 0 arrivals", init)
    expect = "@%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 0x100000;"
    fails(INIT_S + expect, shared=64).expect("a barrier counts 1048576 bytes, 1048575 are the most", expect)


# ---- Products ----------------------------------------------------------------------------------------------


MULTIPLY = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0, %f1, %f2, %f3}, %d8, %d9, 0, 1, 1, 0, 0;"
OPERANDS = 4096  # bytes: a from 0 on, b from 2048; of 8 x 8 blocks, 128 bytes on along k, 256 along rows


def product(before: str = "", then: str = "") -> str:
    return f"""mov.u64 %d8, 0x1000080000;
mov.u64 %d9, 0x1000080080;
{before}
wgmma.fence.sync.aligned;
{MULTIPLY}
wgmma.commit_group.sync.aligned;
{then}
wgmma.wait_group.sync.aligned 0;
"""


def test_products(gpu: Gpu) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-8, 9, shape).astype(HALF) for shape in ((64, 16), (8, 16)))

    def blocks(x: Any) -> Any:
        return np.ascontiguousarray(x.reshape(-1, 8, 2, 8).transpose(0, 2, 1, 3))

    load = """mul.wide.u32 %d10, %r0, 16;
add.s64 %d11, %d0, %d10;
ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d11];
mov.u32 %r2, s;
mad.lo.s32 %r3, %r0, 16, %r2;
st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};
setp.lt.u32 %p1, %r0, 16;
add.s64 %d11, %d1, %d10;
@%p1 ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%d11];
@%p1 st.shared.v4.u32 [%r3+2048], {%r4, %r5, %r6, %r7};
fence.proxy.async.shared::cta;
bar.sync 0;
"""
    store = "add.s64 %d11, %d2, %d10;\nst.global.v4.f32 [%d11], {%f0, %f1, %f2, %f3};"
    made = gpu.run(load + product() + store, blocks(a), blocks(b), np.zeros((128, 4), "f4"),
                   threads=128, shared=OPERANDS)[2]  # fmt: skip
    whole = made.reshape(4, 8, 4, 2, 2).transpose(0, 3, 1, 2, 4).reshape(64, 8)
    assert np.array_equal(whole, a.astype("f4") @ b.astype("f4").T)


def test_an_operand_that_is_overwritten_too_early(fails: Any) -> None:
    store = "st.shared.u32 [s+2048], 7;"
    fault = fails(product(then=store), threads=128, shared=OPERANDS)
    line = fault.where(MULTIPLY).split(":")[0].removeprefix("PTX ")
    words = f"what the product of {line} reads was overwritten before it was waited for"
    assert f": {words}. {fault.where('wgmma.wait_group.sync.aligned 0;')}" in fault.said


def test_warps_that_multiply_different_things(fails: Any) -> None:
    other = "setp.ge.u32 %p1, %r0, 64;\n@%p1 add.s64 %d8, %d8, 16;"
    fault = fails(product(other), threads=128, shared=OPERANDS)
    line = fault.where(MULTIPLY).split(":")[0].removeprefix("PTX ")
    assert (
        f": the warps of a group do not multiply the same: {line} and {line}. {fault.where(MULTIPLY)}"
        in fault.said
    )


def test_lanes_that_multiply_different_things(fails: Any) -> None:
    other = "and.b32 %r1, %r0, 31;\nsetp.eq.u32 %p1, %r1, 9;\n@%p1 add.s64 %d8, %d8, 16;"
    fault = fails(product(other), threads=128, shared=OPERANDS)
    assert ": lanes 0 and 9 have different descriptors. PTX line " in fault.said


def test_products_beyond_shared_memory_and_of_too_few_warps(fails: Any) -> None:
    fault = fails(product(), threads=128, shared=OPERANDS - 2048)
    assert ": a wgmma operand goes beyond the block's shared memory. PTX line " in fault.said
    fault = fails(product(), threads=96, shared=OPERANDS)
    assert ": wgmma in a group of fewer than four warps. PTX line " in fault.said


# ---- Copies ------------------------------------------------------------------------------------------------

ONE_THREAD = "setp.ne.u32 %p1, %r0, 0;\n@%p1 ret;\n"


def test_a_block_that_ends_before_its_copy(tries: Any, memory: Any) -> None:
    copy = "cp.async.bulk.global.shared::cta.bulk_group [%d0], [s], 64;"
    store = f"{ONE_THREAD}{copy}\ncp.async.bulk.commit_group;\n"
    address = memory(64)
    ended = "the block ended while 1 copies from or to its shared memory were under way"
    assert ended in tries(store, address, shared=64)
    assert not tries(store + "cp.async.bulk.wait_group.read 0;", address, shared=64)


def test_copies_that_are_not_aligned(fails: Any, memory: Any) -> None:
    store, address = "cp.async.bulk.global.shared::cta.bulk_group [%d0], [s+8], 64;", memory(64)
    words = f"a copy of 64 bytes, 0x{address:x} and shared address 8: not all are multiples of 16"
    fails(store, address, shared=128).expect(words, store)


def test_floats_are_added_in_any_order(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block 4 adds 1, the others 2^-24, which rounding drops unless enough of them come first."""
    put = "mov.u32 %r1, %ctaid.x;\nsetp.eq.u32 %p2, %r1, 4;\nselp.f32 %f1, 0f3F800000, 0f33800000, %p2;\n"
    put += "st.shared.v4.f32 [s], {%f1, %f1, %f1, %f1};\nfence.proxy.async.shared::cta;\n"
    add = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d0], [s], 16;\n"
    wait = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
    made = set()
    for seed in SEEDS:
        monkeypatch.setenv("EMULATOR_SEED", str(seed))
        sums = gpu.run(ONE_THREAD + put + add + wait, np.zeros(8, "f4"), grid=9, shared=64)[0].tolist()
        assert sums == [sums[0]] * 4 + [0] * 4
        made.add(sums[0])
    assert len(made) > 1
    assert made <= {1 + i * 2.0**-23 for i in range(5)}


BOX = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
GET = f"@%p3 {BOX} [s+128], [%d6, {{0, 0}}], [s];"
GET_BOX = f"mov.u64 %d6, args;\n{INIT_S}@%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 128;\n{GET}\n"
TAKE_BOX = """mul.wide.u32 %d7, %r0, 4;
mov.u64 %d8, s;
add.s64 %d8, %d8, %d7;
ld.shared.u32 %r2, [%d8+128];
add.s64 %d7, %d7, %d1;
st.global.u32 [%d7], %r2;
"""


def test_a_tma_box_read_too_early_fails(gpu: Gpu, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that has not arrived is NaN, never the previous contents."""
    source, made = memory(128), memory(128)
    values = np.arange(32, dtype="f4")
    emulated_kernel.ctypes.memmove(source, values.ctypes.data, 128)
    box = gpu.tiled(source, (8, 4), (8, 4))
    early = set()
    for seed in SEEDS:
        monkeypatch.setenv("EMULATOR_SEED", str(seed))
        for wait in ("", WAIT_AT_S):
            body = f"st.shared.u32 [s+128], 0;\n{GET_BOX}{wait}\n{TAKE_BOX}{'' if wait else WAIT_AT_S}"
            gpu.launch(module(body, 2, 256), [box, made])
            got = np.frombuffer(emulated_kernel.ctypes.string_at(made, 128), "f4")
            if wait:
                assert np.array_equal(got, values)
            else:
                assert np.isnan(got).all() or np.array_equal(got, values)
                early.add(bool(np.isnan(got).all()))
    assert True in early


def test_boxes_that_are_not_right(gpu: Gpu, fails: Any, memory: Any) -> None:
    box = gpu.tiled(memory(128), (8, 4), (8, 4))
    fault = fails(GET_BOX.replace("{0, 0}", "{0}"), box, shared=256)
    fault.expect("1 coordinates for a map of 2 dimensions", GET.replace("{0, 0}", "{0}"))
    fault = fails(GET_BOX.replace("{0, 0}", "{2, 0}"), box, shared=256)
    said = "a box that begins 8 bytes into a row, which is no multiple of 16"
    fault.expect(said, GET.replace("{0, 0}", "{2, 0}"))
    fault = fails(GET_BOX.replace("[s+128]", "[s+192]"), box, shared=256)
    fault.expect("a copy of 128 bytes to shared address 192 of 256", GET.replace("[s+128]", "[s+192]"))
    fault = fails(GET_BOX.replace("[s];", "[s+64];", 3).replace("_, [s]", "_, [s+64]"), box, shared=256)
    assert ": a barrier that was not initialised, or was written over. PTX line" in fault.said
    fault = fails(GET_BOX.replace("mov.u64 %d6, args", "mov.u64 %d6, s"), box, shared=256)
    assert "where nothing is allocated" in fault.said
    fault = fails(GET_BOX + WAIT_AT_S, gpu.tiled(memory(128), (8, 64), (8, 64)), shared=4096)
    assert ": the copy of PTX line " in fault.said
    assert fault.said.endswith(", 128 bytes into an allocation of 128")


# ---- Clusters ----------------------------------------------------------------------------------------------

SEND = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r4], 7, [%r5];"
TO_OTHER = """mov.u32 %r2, %cluster_ctarank;
xor.b32 %r3, %r2, 1;
mov.u32 %r4, s;
mapa.shared::cluster.u32 %r5, %r4, %r3;
add.s32 %r4, %r5, 64;
"""
MEET = "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"


def test_words_for_another_block(gpu: Gpu) -> None:
    expect = "@%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 4;\n"
    send = f"@%p3 {SEND.replace('7', '%r2')}\n"
    take = """
ld.shared.u32 %r6, [s+64];
mov.u32 %r7, %ctaid.x;
mul.wide.u32 %d8, %r7, 4;
add.s64 %d8, %d8, %d0;
st.global.u32 [%d8], %r6;"""
    body = INIT_S + TO_OTHER + expect + MEET + send + WAIT_AT_S + take
    made = gpu.run(body, np.zeros(6, "u4"), grid=6, cluster=2, shared=128)[0]
    assert made.tolist() == [1, 0] * 3


@pytest.mark.parametrize(("cluster", "ranks"), [(1, [0, 0, 0, 0]), (2, [1, 2, 1, 2])])
def test_addresses_in_a_cluster_have_the_rank(gpu: Gpu, cluster: int, ranks: list[int]) -> None:
    """Bits above 24, which a product's descriptor has no place for; a block reads its own memory by them."""
    body = """
mov.u32 %r4, s;
st.shared.u32 [%r4+64], %r4;
ld.shared.u32 %r6, [s+64];
shr.u32 %r6, %r6, 24;
mov.u32 %r7, %ctaid.x;
mul.wide.u32 %d8, %r7, 4;
add.s64 %d8, %d8, %d0;
st.global.u32 [%d8], %r6;"""
    made = gpu.run(body, np.zeros(4, "u4"), grid=4, cluster=cluster, shared=128, threads=32)[0]
    assert made.tolist() == ranks


def test_words_for_a_block_that_has_ended(tries: Any, gpu: Gpu, memory: Any) -> None:
    """The other block announces that it exits, and exits; this one waits a while."""
    flag = memory(4)
    leave = "setp.eq.u32 %p4, %r2, 1;\n@%p4 red.release.gpu.global.add.u32 [%d0], 1;\n@%p4 ret;\n"
    wait = """count:
ld.acquire.gpu.global.u32 %r6, [%d0];
add.u32 %r7, %r7, %r6;
setp.lt.u32 %p5, %r7, 300;
@%p5 bra count;
"""
    emulated_kernel.ctypes.memset(flag, 0, 4)
    body = f"{INIT_S}{TO_OTHER}{MEET}{leave}mov.u32 %r7, 0;\n{wait}@%p3 {SEND}"
    assert "shared memory of block 1, which has ended" in tries(body, flag, grid=2, cluster=2, shared=128)


def test_number_of_blocks_per_cluster(fails: Any) -> None:
    other = "mapa.shared::cluster.u32 %r5, %r4, 2;"
    fault = fails(f"mov.u32 %r4, s;\n{other}", shared=64, grid=2, cluster=2)
    assert f"warp 0: the address of block 2 in a cluster of 2. {fault.where(other)}" in fault.said


def test_a_clusters_barrier_is_misused(fails: Any) -> None:
    arrive, wait = MEET.splitlines()
    fails(f"{arrive}\n {arrive}", threads=64).said.endswith(
        "arrives at the cluster's barrier twice without a wait"
    )
    fails(wait).expect("waits at the cluster's barrier without having arrived", wait)


@pytest.mark.parametrize("seed", SEEDS)
def test_exited_blocks_of_a_cluster_are_not_waited_for(
    gpu: Gpu, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warp 0 arrives and exits; no warp passes before the last one has arrived."""
    monkeypatch.setenv("EMULATOR_SEED", str(seed))
    body = f"""{WARPS}
barrier.cluster.arrive.release.aligned;
@%p1 ret;
setp.eq.u32 %p2, %r1, 1;
@%p2 bra meet;
mov.u32 %r2, 0;
again:
atom.shared.add.u32 %r3, [s], 0;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, 50;
@%p2 bra again;
st.global.u32 [%d0], 5;
meet:
barrier.cluster.wait.acquire.aligned;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
ld.global.u32 %r4, [%d0];
mul.wide.u32 %d9, %r1, 4;
add.s64 %d9, %d9, %d0;
st.global.u32 [%d9], %r4;"""
    assert gpu.run(body, np.zeros(3, "u4"), threads=96, shared=64)[0].tolist() == [5, 5, 5]


# ---- Order -------------------------------------------------------------------------------------------------

PUT, TAKE = "st.shared.u32 [s+64], %r0;", "ld.shared.u32 %r2, [s+64];"
TURNS = {
    "nothing": ("", ""),
    "another barrier": ("bar.arrive 1, 64;", "bar.arrive 2, 64;"),
    "the wrong way round": ("bar.sync 1, 64;", "bar.arrive 1, 64;"),
}


@pytest.mark.parametrize("turns", TURNS)
@pytest.mark.parametrize(("first", "second"), [(PUT, TAKE), (TAKE, PUT), (PUT, PUT)])
def test_accesses_that_nothing_orders(tries: Any, turns: str, first: str, second: str) -> None:
    """Warp 0 should come first; in either order the second access is reported."""
    gives, takes = TURNS[turns]
    if turns == "the wrong way round":
        gives, takes = f"@%p1 {takes}", f"@!%p1 {gives}"
    else:
        gives, takes = (f"@%p1 {gives}", f"@!%p1 {takes}") if gives else ("", "")
    said = tries(f"{WARPS}{INIT_S}@%p1 {first}\n{gives}\n{takes}\n@!%p1 {second}", shared=128, threads=64)
    name = {PUT: ("writes", "wrote"), TAKE: ("reads", "read")}
    expected = {
        f"{name[b][0]} shared address 64 of block 0, which warp {w} of block 0 {name[a][1]} at line"
        for w, a, b in ((0, first, second), (1, second, first))
    }
    found = {words.rsplit(" ", 5)[0] for words in said}
    if turns == "the wrong way round":
        assert not said  # warp 1 waits
    else:
        assert found
        assert found <= expected


ORDERS = {
    "a barrier": ("@%p1 bar.arrive 1, 64;", "@!%p1 bar.sync 1, 64;"),
    "a barrier in memory": (
        "@%p3 mbarrier.arrive.shared::cta.b64 _, [s];",
        f"@%p1 bra over;\n{WAIT_AT_S}\nover:",
    ),
    "a flag": (
        "@%p1 red.release.gpu.global.add.u32 [%d0], 1;",
        """@%p1 bra over;
again:
ld.acquire.gpu.global.u32 %r4, [%d0];
setp.eq.u32 %p2, %r4, 0;
@%p2 bra again;
st.global.u32 [%d0], 0;
over:""",
    ),
    "a cluster": (MEET, ""),
}


@pytest.mark.parametrize("way", ORDERS)
@pytest.mark.parametrize(("first", "second"), [(PUT, TAKE), (TAKE, PUT), (PUT, PUT)])
def test_accesses_in_order(tries: Any, memory: Any, way: str, first: str, second: str) -> None:
    flag = memory(4)
    emulated_kernel.ctypes.memset(flag, 0, 4)
    gives, takes = ORDERS[way]
    body = f"{WARPS}{INIT_S}@%p1 {first}\n{gives}\n{takes}\n@!%p1 {second}"
    assert not tries(body, flag, shared=128, threads=64)


WAIT_AGAIN = WAIT_AT_S.replace("again", "more").replace("[s], 0;", "[s], 1;")
GET_AGAIN = f"@%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 128;\n{GET}\n{WAIT_AGAIN}"


def test_a_tma_box_over_data_still_being_read_fails(gpu: Gpu, tries: Any, memory: Any) -> None:
    """The first thread starts the next copy when its own warp has finished reading."""
    box, again = gpu.tiled(memory(128), (8, 4), (8, 4)), GET_AGAIN
    read = "ld.shared.u32 %r2, [s+128];\nfence.proxy.async;\n"
    said = tries(f"{GET_BOX}{WAIT_AT_S}\n{read}{again}", box, shared=256, threads=64)
    place = "shared address 128 of block 0, which warp"
    words = (f"writes {place} 1 of block 0 read at line", f"reads {place} 0 of block 0 wrote at line")
    assert any(one.startswith(words) for one in said)
    assert not tries(f"{GET_BOX}{WAIT_AT_S}\n{read}bar.sync 0;\n{again}", box, shared=256, threads=64)


def test_thread_writes_need_a_fence_before_tma(fails: Any, tries: Any, memory: Any) -> None:
    """Before the copy engine reads it, or a product."""
    address = memory(64)
    copy = "@%p3 cp.async.bulk.global.shared::cta.bulk_group [%d0], [s+64], 64;"
    wait = "@%p3 cp.async.bulk.commit_group;\n@%p3 cp.async.bulk.wait_group 0;"
    put = f"{THREAD_0}@%p1 {PUT}\n"
    for fenced in ("fence.proxy.async.shared::cta;\nbar.sync 0;", "bar.sync 0;\nfence.proxy.async;"):
        assert not tries(f"{WARPS}{put}{fenced}\n{copy}\n{wait}", address, shared=128, threads=64)
    fault = fails(f"{WARPS}{put}bar.sync 0;\n{copy}\n{wait}", address, shared=128, threads=64)
    line = fault.where(f"@%p1 {PUT}").split(":")[0].removeprefix("PTX ")
    words = f"reads shared address 64, which warp 0 of block 0 wrote at {line}, without fence.proxy.async"
    fault.expect(words, copy)
    put = f"{WARPS}@%p1 st.shared.u32 [s+2048], %r0;\n"
    fault = fails(f"{put}bar.sync 0;\n{product()}", shared=OPERANDS, threads=128)
    assert ": reads shared address 2048, which warp 0 of block 0 wrote at line " in fault.said
    assert not tries(f"{put}fence.proxy.async;\nbar.sync 0;\n{product()}", shared=OPERANDS, threads=128)


def test_thread_reads_need_a_fence_before_tma(gpu: Gpu, fails: Any, tries: Any, memory: Any) -> None:
    """Applies before the copy engine writes: to the threads that read, or to the one that starts the copy."""
    box, read = gpu.tiled(memory(128), (8, 4), (8, 4)), "ld.shared.u32 %r2, [s+128];"
    begin = f"{WARPS}{GET_BOX}{WAIT_AT_S}\n@!%p1 {read}\n"
    for fenced in ("fence.proxy.async.shared::cta;\nbar.sync 0;", "bar.sync 0;\n@%p1 fence.proxy.async;"):
        assert not tries(f"{begin}{fenced}\n{GET_AGAIN}", box, shared=256, threads=64)
    for unfenced in ("bar.sync 0;", "@%p1 fence.proxy.async;\nbar.sync 0;\n@!%p1 fence.proxy.async;"):
        said = tries(f"{begin}{unfenced}\n{GET_AGAIN}", box, shared=256, threads=64)
        words = "copies to shared address 128, which warp 1 of block 0 read at line"
        assert any(one.startswith(words) and "without fence.proxy.async" in one for one in said)


def test_relaxed_stores_go_through_a_fence(fails: Any, tries: Any) -> None:
    """If they change the value; several warps storing the same value is not a race."""
    put = "st.relaxed.cta.shared.u32 [s+2048], {};\n"
    end = f"bar.sync 0;\n{product()}"
    first = "mov.u32 %r2, 1;\n@%p1 st.shared.u32 [s+2048], %r2;\nfence.proxy.async;\nbar.sync 0;\n"
    clear = f"{WARPS}{first}"
    fault = fails(f"{clear}{put.format(7)}{end}", shared=OPERANDS, threads=128)
    assert ": reads shared address 2048, which warp " in fault.said
    assert "without fence.proxy.async" in fault.said
    assert not tries(f"{clear}{put.format(1)}{end}", shared=OPERANDS, threads=128)
    assert not tries(f"{clear}{put.format(7)}fence.proxy.async;\n{end}", shared=OPERANDS, threads=128)


# ---- What is not known -------------------------------------------------------------------------------------

UNKNOWN = """add.sat.s32 %r1, %r1, %r1
mul.rz.ftz.f32 %r1, %r1, %r1
fma.rn.sat.f32 %r1, %r1, %r1, %r1
add.cc.u64 %d1, %d1, %d1
cvt.rn.ftz.f32.s32 %r1, %r1
cvt.rn.satfinite.f16x2.f32 %r1, %r1, %r1
cvt.rz.tf32.f32 %r1, %r1
cvt.rn.e4m3x2.f32 %h1, %r1, %r1
setp.lt.ftz.f32 %p1, %r1, %r1
setp.about.f32 %p1, %r1, %r1
setp.ltu.s32 %p1, %r1, %r1
selp.b128 %r1, %r1, %r1, %p1
mov.b128 %r1, {%d1, %d1}
prmt.b32.f4e %r1, %r1, %r1, %r1
isspacep.shared %p1, %d1
ld.global.b128 %r1, [%d0]
ld.global.v8.f32 {%r1, %r1, %r1, %r1, %r1, %r1, %r1, %r1}, [%d0]
ld.global.v2.f32 %r1, [%d0]
atom.global.min.f32 %r1, [%d0], %r1
atom.global.add.noftz.f16x2 %r1, [%d0], %r1
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r1, [%r1]
barrier.sync 0
match.all.sync.b32 %r1|%p1, %r1, -1
redux.sync.min.NaN.f32 %r1, %r1, -1
shfl.up.b32 %r1, %r1, 1, 0
mbarrier.arrive.shared::cta.b64 %d1, [s]
mbarrier.try_wait.shared::cta.b64 %p1, [s], %d1
cp.async.ca.shared.global.L2::cache_hint [s], [%d0], 16, %d1
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [s], [s], 16, [s]
cp.async.bulk.tensor.2d.tile::gather4.shared::cta.global.mbarrier::complete_tx::bytes [s], [%d1, {%r1}], [s]
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d0], [s], 16
ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32 %r1, [s]
mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1, %r1}, {%r1}, {%r1}, {%r1}
wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r1, %r1}, %d1, %d1, 0, 1, 1, 0, 0
wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%r1}, %d1, %d1, %r1, 0, 0, 1, 1
brx.idx %r1, table"""


@pytest.mark.parametrize("line", UNKNOWN.splitlines(), ids=lambda line: line.split()[0])
def test_what_is_not_known_is_refused(gpu: Gpu, line: str) -> None:
    text = module(line + ";", 1, 64)
    number = text.splitlines().index(line + ";") + 1
    said = gpu.load(text, wants=INVALID_IMAGE)[1]
    assert said == f"PTX line {number}: the emulator does not know '{line.split()[0]}'"


@pytest.mark.parametrize(("line", "name"), [("bra lost;", "lost"), ("mov.u64 %d1, %clock64;", "%clock64")])
def test_names_that_mean_nothing(gpu: Gpu, line: str, name: str) -> None:
    assert gpu.load(module(line), wants=INVALID_IMAGE)[1].endswith(f"nothing is called '{name}'")


def test_a_kernel_has_one_parameter(gpu: Gpu) -> None:
    text = module("").replace("(.param .align 128 .b8 args[128])", "(.param .u64 a, .param .u64 b)")
    words = "PTX line 4: kernel 'k' has more than one parameter, which the emulator does not know"
    assert gpu.load(text, wants=INVALID_IMAGE)[1] == words


RECURSIVE = ".func again()\n{\ncall.uni again;\nret;\n}\n"


def test_calls_without_end(gpu: Gpu) -> None:
    text = module("call.uni again;").replace(".visible", RECURSIVE + ".visible")
    said = gpu.load(text, wants=INVALID_IMAGE)[1]
    assert said == "PTX line 6: more than 16 calls inside each other, of which the last is to 'again'"


def test_texts_that_end_early(gpu: Gpu) -> None:
    cut = module("call.uni (%r1").split("(%r1")[0] + "(%r1"
    assert gpu.load(cut, wants=INVALID_IMAGE)[1].endswith("there is no ')' behind '(%r1'")
    text = module(".reg .b128 %q1;")
    assert gpu.load(text, wants=INVALID_IMAGE)[1].endswith("registers of type 'b128'")


def test_the_driver_reports_what_was_wrong(gpu: Gpu) -> None:
    words = emulated_kernel.ctypes.c_char_p()
    gpu.launch(module("trap;"), [], wants=LAUNCH_FAILED)
    gpu.call("cuGetErrorString", LAUNCH_FAILED, emulated_kernel.ctypes.byref(words))
    assert (words.value or b"").startswith(b"kernel 'k', block [0,0,0], warp 0: 'trap'. PTX line ")


# ---- Conversions -------------------------------------------------------------------------------------------

INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
TYPES = {"i": "s", "u": "u", "f": "f"}


def ptx_type(dtype: Any) -> str:
    dtype = np.dtype(dtype)
    return "bf16" if dtype == BF16 else f"{TYPES[dtype.kind]}{8 * dtype.itemsize}"


def floats(dtype: Any = "f4") -> Any:
    """Every kind of value: zeros, subnormals, midpoints, infinities, NaN, any bits."""
    rng = np.random.default_rng(5)
    size = np.dtype(dtype).itemsize
    bits = rng.integers(0, 2 ** (8 * size) - 1, 2000, dtype=f"u{size}", endpoint=True).view(dtype)
    special = np.array(
        [0.0, 0.5, 1.5, 2.5, 0.49999997, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 65504, 65519.996, 65520, 448,
         464, 465, 57344, 61440, 2**-24, 2**-25, 2**-26, 2**-9, 2**-10, 3e-45, 1e-40, 127.5, 128, 255.5,
         32767.5, 65535.5, 2**31, 2**32, 2**63, 2**64, 3e38, np.inf, np.nan]
    ).astype(dtype)  # fmt: skip
    near = rng.uniform(-300, 300, 1000).astype(dtype)
    return np.concatenate([special, -special, near, bits])


def same(got: Any, want: Any) -> None:
    """The same values; where one is NaN, so is the other."""
    got, want = np.asarray(got), np.asarray(want)
    are_nan = np.isnan(want.astype("f4"))
    assert np.array_equal(np.isnan(got.astype("f4")), are_nan)
    assert np.array_equal(got[~are_nan].view(f"u{got.itemsize}"), want[~are_nan].view(f"u{got.itemsize}"))


WHOLE = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("source", ["f4", "f8", "f2"])
def test_floats_become_integers(gpu: Gpu, way: str, source: str) -> None:
    values = floats(source)
    for target in INTEGERS:
        info = np.iinfo(target)
        is_whole_nan = source == "f8" or info.bits == 64
        want = []
        for value in WHOLE[way](values.astype("f8")):
            if np.isnan(value):
                want.append(
                    int(np.array(1 << (info.bits - 1), f"u{info.bits // 8}").view(target))
                    if is_whole_nan
                    else 0
                )
            else:
                want.append(int(np.clip(value, -1e30, 1e30)))
        want = np.array([min(max(v, info.min), info.max) for v in want], target)
        got = gpu.each(f"cvt.{way}.{ptx_type(target)}.{ptx_type(source)} {{d}}, {{a}};", target, values)
        assert np.array_equal(got, want), target


@pytest.mark.parametrize("way", WHOLE)
def test_floats_become_whole(gpu: Gpu, way: str) -> None:
    for dtype in ("f4", "f8", "f2"):
        name = ptx_type(dtype)
        same(
            gpu.each(f"cvt.{way}.{name}.{name} {{d}}, {{a}};", dtype, floats(dtype)),
            WHOLE[way](floats(dtype)),
        )


def integers(dtype: Any) -> Any:
    info, rng = np.iinfo(dtype), np.random.default_rng(6)
    near = [v + d for p in range(info.bits) for d in (-1, 0, 1) for v in (1 << p, -(1 << p))]
    known = [v for v in [0, info.min, info.max, *near] if info.min <= v <= info.max]
    return np.concatenate([np.array(known, dtype), rng.integers(info.min, info.max, 500, dtype)])


@pytest.mark.parametrize("source", INTEGERS)
@pytest.mark.parametrize("target", INTEGERS)
def test_integers_become_others(gpu: Gpu, source: str, target: str) -> None:
    values, info = integers(source), np.iinfo(target)
    name = f"{ptx_type(target)}.{ptx_type(source)}"
    assert np.array_equal(gpu.each(f"cvt.{name} {{d}}, {{a}};", target, values), values.astype(target))
    clipped = np.array([min(max(int(v), info.min), info.max) for v in values], target)
    if np.can_cast(source, target):
        return  # nothing to clip
    assert np.array_equal(gpu.each(f"cvt.sat.{name} {{d}}, {{a}};", target, values), clipped)


def next_to(value: Any, target: Any, way: str) -> Any:
    """Moves exact values by one step if rounding to nearest went to the wrong side."""
    target = np.dtype(target)
    made = value.astype(target)
    if way == "rn":
        return made
    exact, back = value.astype(np.longdouble), made.astype(np.longdouble)
    up = np.nextafter(made, np.array(np.inf, target))
    down = np.nextafter(made, np.array(-np.inf, target))
    wants_up = (way == "rp") | ((way == "rz") & (exact < 0))
    wants_down = (way == "rm") | ((way == "rz") & (exact > 0))
    return np.where((back < exact) & wants_up, up, np.where((back > exact) & wants_down, down, made)).astype(
        target
    )


@pytest.mark.parametrize("way", ["rn", "rz", "rm", "rp"])
def test_roundings_to_floats(gpu: Gpu, way: str) -> None:
    for source in ("i4", "u4", "i8", "u8"):
        for target in ("f4", "f8"):
            name = f"{ptx_type(target)}.{ptx_type(source)}"
            got = gpu.each(f"cvt.{way}.{name} {{d}}, {{a}};", target, integers(source))
            assert np.array_equal(got, next_to(integers(source), target, way)), name
    same(gpu.each(f"cvt.{way}.f32.f64 {{d}}, {{a}};", "f4", floats("f8")), next_to(floats("f8"), "f4", way))
    same(gpu.each(f"cvt.{way}.f16.f32 {{d}}, {{a}};", HALF, floats()), next_to(floats(), HALF, way))
    same(gpu.each(f"cvt.{way}.f16.f64 {{d}}, {{a}};", HALF, floats("f8")), next_to(floats("f8"), HALF, way))
    if way in ("rn", "rz"):
        same(gpu.each(f"cvt.{way}.bf16.f32 {{d}}, {{a}};", BF16, floats()), next_to(floats(), BF16, way))


def test_halves_become_floats(gpu: Gpu) -> None:
    codes = np.arange(1 << 16, dtype="u2")
    same(gpu.each("cvt.f32.f16 {d}, {a};", "f4", codes.view(HALF)), codes.view(HALF).astype("f4"))
    same(gpu.each("cvt.f32.bf16 {d}, {a};", "f4", codes.view(BF16)), codes.view(BF16).astype("f4"))


def test_saturating_and_clipped_conversions(gpu: Gpu) -> None:
    values = floats()
    want = np.clip(np.nan_to_num(values, nan=0.0), 0, 1)
    assert np.array_equal(gpu.each("cvt.sat.f32.f32 {d}, {a};", "f4", values), want)
    positive = np.where(values <= 0, 0, values).astype(BF16)
    same(gpu.each("cvt.rn.relu.bf16.f32 {d}, {a};", BF16, values) + BF16(0), positive)


def test_pairs_of_short_floats(gpu: Gpu) -> None:
    a, b = floats(), floats()[::-1].copy()
    for name, dtype in (("f16x2", HALF), ("bf16x2", BF16)):
        got = gpu.each(f"cvt.rn.{name}.f32 {{d}}, {{a}}, {{b}};", "u4", a, b).view(dtype)
        same(got[1::2], a.astype(dtype))
        same(got[0::2], b.astype(dtype))
    for name, dtype, most in (("e4m3x2", E4M3, 448), ("e5m2x2", E5M2, 57344)):
        got = gpu.each(f"cvt.rn.satfinite.{name}.f32 {{d}}, {{a}}, {{b}};", "u2", a, b).view(dtype)
        same(got[1::2], np.clip(a, -most, most).astype(dtype))
        same(got[0::2], np.clip(b, -most, most).astype(dtype))
        codes = np.arange(1 << 16, dtype="u2")
        wide = gpu.each(f"cvt.rn.f16x2.{name} {{d}}, {{a}};", "u4", codes).view(HALF)
        same(wide, codes.view(dtype).astype(HALF))


def test_tf32(gpu: Gpu) -> None:
    values = floats()
    bits = values.view("u4")
    want = ((bits + 0x1000) & 0xFFFFE000).view("f4")
    same(gpu.each("cvt.rna.tf32.f32 {d}, {a};", "f4", values), np.where(np.isnan(values), values, want))


# ---- Arithmetic --------------------------------------------------------------------------------------------


def pairs(dtype: Any) -> tuple[Any, Any]:
    """Each value paired with each other."""
    values = integers(dtype)[::7] if np.dtype(dtype).kind in "iu" else floats(dtype)[:70]
    if np.dtype(dtype).kind in "iu":
        values = np.concatenate([values, np.array([0, 1, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)])
        values = np.concatenate([values, np.array([-1 if np.dtype(dtype).kind == "i" else 2], dtype)])
    return np.repeat(values, len(values)), np.tile(values, len(values))


@pytest.mark.parametrize("dtype", INTEGERS[2:])
def test_quotients(gpu: Gpu, dtype: str) -> None:
    """By zero, all ones; the least by -1 is the least."""
    a, b = pairs(dtype)
    info = np.iinfo(dtype)
    x, y = a.astype(object), b.astype(object)
    sign = np.where((x < 0) != (y < 0), -1, 1)
    quotient = np.where(y == 0, -1, sign * (abs(x) // np.where(y == 0, 1, abs(y))))
    rest = np.where(y == 0, -1, x - quotient * y)
    for name, want in (("div", quotient), ("rem", rest)):
        wrapped = (want & (2**info.bits - 1)).astype(f"u{info.bits // 8}").view(dtype)
        assert np.array_equal(
            gpu.each(f"{name}.{ptx_type(dtype)} {{d}}, {{a}}, {{b}};", dtype, a, b), wrapped
        )


@pytest.mark.parametrize("dtype", ["i4", "u4", "i8", "u8", "i2", "u2"])
def test_products_of_integers(gpu: Gpu, dtype: str) -> None:
    a, b = pairs(dtype)
    bits, name = np.iinfo(dtype).bits, ptx_type(dtype)
    whole = a.astype(object) * b.astype(object)

    def cut(values: Any, size: int) -> Any:
        return (values & (2**size - 1)).astype(f"u{size // 8}").view(f"{dtype[0]}{size // 8}")

    assert np.array_equal(gpu.each(f"mul.lo.{name} {{d}}, {{a}}, {{b}};", dtype, a, b), cut(whole, bits))
    got = gpu.each(f"mul.hi.{name} {{d}}, {{a}}, {{b}};", dtype, a, b)
    assert np.array_equal(got, cut(whole >> bits, bits))
    if bits < 64:
        wide = f"{dtype[0]}{bits // 4}"
        assert np.array_equal(
            gpu.each(f"mul.wide.{name} {{d}}, {{a}}, {{b}};", wide, a, b), cut(whole, 2 * bits)
        )
    if bits == 32:
        added = np.tile(integers(wide), len(a))[: len(a)]
        got = gpu.each(f"mad.wide.{name} {{d}}, {{a}}, {{b}}, {{c}};", wide, a, b, added)
        assert np.array_equal(got, cut(whole + added.astype(object), 64))


def test_chains_of_carries(gpu: Gpu) -> None:
    """Sums, differences and products of 64 bits in halves."""
    a, b = pairs("u8")
    split = "mov.b64 {{%r40, %r41}}, {a};\nmov.b64 {{%r42, %r43}}, {b};\n"
    join = "mov.b64 {d}, {{%r44, %r45}};"
    for low, high, want in (("add.cc", "addc", a + b), ("sub.cc", "subc", a - b)):
        text = f"{low}.u32 %r44, %r40, %r42;\n{high}.u32 %r45, %r41, %r43;\n"
        assert np.array_equal(gpu.each(split + text + join, "u8", a, b), want)
    text = "mad.lo.cc.u32 %r44, %r40, %r42, %r41;\nmadc.hi.u32 %r45, %r40, %r42, %r43;\n"
    mask = np.uint64(0xFFFFFFFF)
    want = (a & mask) * (b & mask) + (a >> np.uint64(32)) + (b & ~mask)
    assert np.array_equal(gpu.each(split + text + join, "u8", a, b), want)


def test_calls(gpu: Gpu) -> None:
    """A function's body replaces its call, wherever it is stored."""
    text = module("""mul.wide.u32 %d8, %r0, 4;
add.s64 %d8, %d8, %d0;
ld.global.u32 %r1, [%d8];
{
.param .b32 given;
.param .b32 got;
st.param.b32 [given], %r1;
call.uni (got), twice, (given);
ld.param.b32 %r2, [got];
}
st.global.u32 [%d8], %r2;""", 1)  # fmt: skip
    function = """.func (.param .b32 made) twice(.param .b32 of)
{
.reg .b32 %r<3>;
ld.param.b32 %r1, [of];
add.u32 %r2, %r1, %r1;
st.param.b32 [made], %r2;
ret;
}
"""
    address = gpu.allocate(128)
    emulated_kernel.ctypes.memmove(address, np.arange(32, dtype="u4").ctypes.data, 128)
    gpu.launch(text.replace(".visible", function + ".visible"), [address])
    got = np.frombuffer(emulated_kernel.ctypes.string_at(address, 128), "u4")
    gpu.free(address)
    assert np.array_equal(got, 2 * np.arange(32))
    said = gpu.load(text, wants=INVALID_IMAGE)[1]
    assert said.endswith("the emulator does not know the function 'twice'")


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts(gpu: Gpu, bits: int) -> None:
    counts = np.array([0, 1, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 2**32 - 1], "u4")
    for dtype, way in ((f"u{bits // 8}", "u"), (f"i{bits // 8}", "s")):
        values = integers(dtype)[::5]
        a, n = np.repeat(values, len(counts)), np.tile(counts, len(values))
        most = np.minimum(n, bits).astype(object)
        left = ((a.astype(object) << most) & (2**bits - 1)).astype(f"u{bits // 8}").view(dtype)
        right = (a.astype(object) >> most).astype(dtype)
        assert np.array_equal(gpu.each(f"shl.b{bits} {{d}}, {{a}}, {{b}};", dtype, a, n), left)
        assert np.array_equal(gpu.each(f"shr.{way}{bits} {{d}}, {{a}}, {{b}};", dtype, a, n), right)


def test_funnel_shifts(gpu: Gpu) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.integers(0, 2**32, (2, 400), "u4")
    n = np.tile(np.array([0, 1, 5, 31, 32, 33, 40, 1000], "u4"), 50)
    joined = b.astype(object) << 32 | a.astype(object)
    for mode, count in (("wrap", n & 31), ("clamp", np.minimum(n, 32))):
        count = count.astype(object)
        right = ((joined >> count) & 0xFFFFFFFF).astype("u4")
        left = ((joined << count >> 32) & 0xFFFFFFFF).astype("u4")
        assert np.array_equal(gpu.each(f"shf.r.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", "u4", a, b, n), right)
        assert np.array_equal(gpu.each(f"shf.l.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", "u4", a, b, n), left)


@pytest.mark.parametrize("dtype", ["u4", "i4", "u8", "i8"])
def test_fields_of_bits(gpu: Gpu, dtype: str) -> None:
    rng, bits = np.random.default_rng(3), np.iinfo(dtype).bits
    a = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 600, dtype)
    b = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, 600, dtype)
    at, count = rng.integers(0, 80, (2, 600), "u4")
    at[::50], count[::30], at[::70] = 256 + 3, 0, 255

    def bit(value: int, n: int) -> int:
        return value >> n & 1

    taken, put = [], []
    for x, y, p, n in zip(*(v.tolist() for v in (a, b, at & 255, count & 255)), strict=True):
        sign = bit(x, min(p + n - 1, bits - 1)) if n and dtype[0] == "i" else 0
        taken.append(sum((bit(x, p + k) if k < n and p + k < bits else sign) << k for k in range(bits)))
        put.append(sum((bit(x, k - p) if p <= k < p + n else bit(y, k)) << k for k in range(bits)))
    unsigned = f"u{bits // 8}"
    got = gpu.each(f"bfe.{ptx_type(dtype)} {{d}}, {{a}}, {{b}}, {{c}};", dtype, a, at, count)
    assert np.array_equal(got.view(unsigned), np.array(taken, unsigned))
    got = gpu.each(f"bfi.b{bits} {{d}}, {{a}}, {{b}}, {{c}}, {{e}};", dtype, a, b, at, count)
    assert np.array_equal(got.view(unsigned), np.array(put, unsigned))
    values = integers(dtype)
    top = [(~int(v) if v < 0 else int(v)).bit_length() - 1 for v in values]
    got = gpu.each(f"bfind.{ptx_type(dtype)} {{d}}, {{a}};", "i4", values)
    assert got.tolist() == top
    got = gpu.each(f"bfind.shiftamt.{ptx_type(dtype)} {{d}}, {{a}};", "i4", values)
    assert got.tolist() == [bits - 1 - v if v >= 0 else -1 for v in top]
    got = gpu.each(f"popc.b{bits} {{d}}, {{a}};", "i4", values)
    assert got.tolist() == [bin(int(v) & (2**bits - 1)).count("1") for v in values]
    got = gpu.each(f"clz.b{bits} {{d}}, {{a}};", "i4", values)
    assert got.tolist() == [bits - (int(v) & (2**bits - 1)).bit_length() for v in values]


def test_bytes_and_bits_of_words(gpu: Gpu) -> None:
    rng = np.random.default_rng(4)
    a, b, c = rng.integers(0, 2**32, (3, 500), "u4")
    assert gpu.each("brev.b32 {d}, {a};", "u4", a).tolist() == [int(f"{v:032b}"[::-1], 2) for v in a]
    parts = np.concatenate([a.reshape(-1, 1).view("u1"), b.reshape(-1, 1).view("u1")], 1)
    choice = c.reshape(-1, 1) >> np.array([0, 4, 8, 12], "u4")
    taken = np.take_along_axis(parts, (choice & 7).astype("i8"), 1)
    taken = np.where(choice & 8, np.where(taken & 128, 255, 0), taken).astype("u1")
    assert np.array_equal(gpu.each("prmt.b32 {d}, {a}, {b}, {c};", "u4", a, b, c), taken.view("u4")[:, 0])
    for table, want in (
        (0xE8, a & b | a & c | b & c),
        (0x96, a ^ b ^ c),
        (0xC0, a & b),
        (0x2A, ~(a & b) & c),
        (0, 0 * a),
    ):
        assert np.array_equal(gpu.each(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", "u4", a, b, c), want)
    for x, y in (("u", "u"), ("u", "s"), ("s", "u"), ("s", "s")):
        left, right = (
            v.view("i1" if kind == "s" else "u1").astype("i8").reshape(-1, 4) for v, kind in ((a, x), (b, y))
        )
        want = ((left * right).sum(1) + c).astype("u4")
        assert np.array_equal(gpu.each(f"dp4a.{x}32.{y}32 {{d}}, {{a}}, {{b}}, {{c}};", "u4", a, b, c), want)
        halves = a.view("i2" if x == "s" else "u2").astype("i8").reshape(-1, 2)
        for at, name in ((0, "lo"), (2, "hi")):
            want = ((halves * right[:, at : at + 2]).sum(1) + c).astype("u4")
            line = f"dp2a.{name}.{x}32.{y}32 {{d}}, {{a}}, {{b}}, {{c}};"
            assert np.array_equal(gpu.each(line, "u4", a, b, c), want)


@pytest.mark.parametrize("dtype", ["f4", "f8", HALF, BF16])
def test_least_and_most(gpu: Gpu, dtype: Any) -> None:
    """NaN loses, or wins with .NaN; -0 is below +0."""
    a, b = pairs("f4" if dtype == BF16 else dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    name = ptx_type(dtype)
    is_nan = [np.isnan(v.astype("f4")) for v in (a, b)]
    x, y = a.astype("f8"), b.astype("f8")
    is_less = (x < y) | ((x == y) & np.signbit(x))
    for way, first in (("min", is_less), ("max", ~is_less)):
        want = np.where(is_nan[0], b, np.where(is_nan[1] | first, a, b))
        same(gpu.each(f"{way}.{name} {{d}}, {{a}}, {{b}};", dtype, a, b), want)
        if dtype != "f8":
            same(
                gpu.each(f"{way}.NaN.{name} {{d}}, {{a}}, {{b}};", dtype, a, b),
                np.where(is_nan[0], a, np.where(is_nan[1], b, want)),
            )


def test_sums_and_products_of_floats(gpu: Gpu) -> None:
    a, b = pairs("f4")
    for name, want in (("add.rn", a + b), ("sub", a - b), ("mul.rn", a * b), ("div.rn", a / b)):
        same(gpu.each(f"{name}.f32 {{d}}, {{a}}, {{b}};", "f4", a, b), want)

    x, y = (v.astype(np.longdouble) for v in (a, b))
    exact = x + y
    is_sum = (exact - x == y) & (exact - y == x)
    for way in ("rz", "rm", "rp"):
        for text in (f"add.{way}.f32 {{d}}, {{a}}, {{b}};", f"fma.{way}.f32 {{d}}, {{a}}, 1.0, {{b}};"):
            got = gpu.each(text, "f4", a, b)
            same((got + 0)[is_sum], (next_to(exact, "f4", way) + 0)[is_sum])
        product = x * y
        is_exact = np.isfinite(product) & (product / y == x)
        got = gpu.each(f"mul.{way}.f32 {{d}}, {{a}}, {{b}};", "f4", a, b)
        same(got[is_exact], next_to(product, "f4", way)[is_exact])
    same(gpu.each("copysign.f32 {d}, {a}, {b};", "f4", a, b), np.copysign(b, a))

    def flushed(v: Any) -> Any:
        return np.where(np.abs(v) < np.finfo("f4").tiny, np.copysign(0, v), v).astype("f4")

    x, y = flushed(a), flushed(b)
    for name, want in (("add.ftz", x + y), ("mul.rn.ftz", x * y), ("rcp.approx.ftz", 1 / x)):
        operands = "{a}" if name.startswith("rcp") else "{a}, {b}"
        same(gpu.each(f"{name}.f32 {{d}}, {operands};", "f4", a, b), flushed(want))
    x, y = (v.astype(HALF) for v in (a, b))
    same(gpu.each("add.rn.f16 {d}, {a}, {b};", HALF, x, y), x + y)
    exact = x.astype("f8") * y.astype("f8") + x.astype("f8")
    same(gpu.each("fma.rn.f16 {d}, {a}, {b}, {a};", HALF, x, y), exact.astype(HALF))


# ---- Comparisons -------------------------------------------------------------------------------------------

ORDERED = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
COMBINED = {"": lambda t, c: t, "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@pytest.mark.parametrize("dtype", ["f4", "f8", HALF, BF16, "i2", "u2", "i4", "u4", "i8", "u8"])
def test_comparisons(gpu: Gpu, dtype: Any) -> None:
    a, b = pairs("f4" if dtype == BF16 else dtype)
    a, b = a.astype(dtype), b.astype(dtype)
    x, y = (a.astype("f8"), b.astype("f8")) if np.dtype(dtype).kind not in "iu" else (a, b)
    has_nan = np.isnan(x) | np.isnan(y)
    ways = {name: compare(x, y) & ~has_nan for name, compare in ORDERED.items()}
    if np.dtype(dtype).kind not in "iu":
        ways |= {name + "u": holds | has_nan for name, holds in ways.items()} | {
            "num": ~has_nan,
            "nan": has_nan,
        }
    c = np.arange(len(a), dtype="u4") % 3 // 2
    for combined, join in COMBINED.items():
        for way, holds in ways.items():
            middle, third = f"{way}{'.' + combined if combined else ''}", ", %p3" if combined else ""
            operands, want = f"{{a}}, {{b}}{third}", join(holds, c != 0)
            first = "setp.ne.u32 %p3, {c}, 0;\n"
            got = gpu.each(f"{first}set.{middle}.u32.{ptx_type(dtype)} {{d}}, {operands};", "u4", a, b, c)
            assert np.array_equal(got, want * np.uint32(2**32 - 1)), middle
            results = "%p1" if dtype in (HALF, BF16) else "%p1|%p2"
            text = f"{first}setp.{middle}.{ptx_type(dtype)} {results}, {operands};\n"
            text += "selp.u32 {d}, 1, 0, %p1;\n"
            if "%p2" in results:
                text += "selp.u32 %r40, 2, 0, %p2;\nadd.u32 {d}, {d}, %r40;"
                want = want + 2 * join(~holds, c != 0)
            assert np.array_equal(gpu.each(text, "u4", a, b, c), want), middle


@pytest.mark.parametrize(("dtype", "name"), [(HALF, "f16x2"), (BF16, "bf16x2")])
def test_comparisons_of_pairs(gpu: Gpu, dtype: Any, name: str) -> None:
    a, b = (np.ascontiguousarray(v).astype(dtype) for v in pairs("f4"))
    x, y = a.astype("f4").reshape(-1, 2), b.astype("f4").reshape(-1, 2)
    words = [v.view("u4") for v in (a, b)]
    c = np.arange(len(words[0]), dtype="u4") % 3 // 2
    for combined, join in COMBINED.items():
        holds = join(x < y, (c != 0)[:, None])
        middle, third = f"lt{'.' + combined if combined else ''}", ", %p3" if combined else ""
        text = f"setp.ne.u32 %p3, {{c}}, 0;\nset.{middle}.u32.{name} {{d}}, {{a}}, {{b}}{third};"
        assert np.array_equal(gpu.each(text, "u4", *words, c).view("u2").reshape(-1, 2), holds * 0xFFFF)
        text = text.replace("u32." + name, f"{name}.{name}")
        assert np.array_equal(gpu.each(text, "u4", *words, c).view(dtype).reshape(-1, 2), holds.astype(dtype))
        text = f"setp.ne.u32 %p3, {{c}}, 0;\nsetp.{middle}.{name} %p1|%p3, {{a}}, {{b}}{third};\n"
        text += "selp.u32 {d}, 1, 0, %p1;\nselp.u32 %r40, 2, 0, %p3;\nadd.u32 {d}, {d}, %r40;"
        assert np.array_equal(gpu.each(text, "u4", *words, c), holds[:, 0] + 2 * holds[:, 1])


# ---- Warp-level operations ---------------------------------------------------------------------------------


def shuffled(mode: str, values: Any, b: Any, clamp: int, segments: int) -> tuple[Any, Any]:
    """By the text of the PTX document, lane by lane."""
    made, found = values.copy(), np.zeros(32, "u4")
    for lane in range(32):
        most = (lane & segments) | (clamp & ~segments & 31)
        by = int(b[lane]) & 31
        to = (lane & segments) | (by & ~segments)
        j = {"up": lane - by, "down": lane + by, "bfly": lane ^ by, "idx": to}[mode]
        found[lane] = j >= most if mode == "up" else j <= most
        made[lane] = values[j if found[lane] else lane]
    return made, found


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("width", [32, 16, 8, 2, 1])
def test_shuffles(gpu: Gpu, mode: str, width: int) -> None:
    rng = np.random.default_rng(7)
    values = rng.integers(0, 2**32, 32, "u4")
    segments, clamp = 32 - width, 0 if mode == "up" else 31
    for b in (*(np.full(32, by, "u4") for by in (1, 5, 33)), rng.integers(0, 40, 32, "u4")):
        text = f"shfl.sync.{mode}.b32 {{d}}|%p4, {{a}}, {{b}}, {segments << 8 | clamp}, -1;\n"
        made, found = shuffled(mode, values, b, clamp, segments)
        assert np.array_equal(gpu.each(text.replace("|%p4", ""), "u4", *many(values, b))[:32], made)
        text += "selp.u32 {d}, 1, 0, %p4;"
        assert np.array_equal(gpu.each(text, "u4", *many(values, b))[:32], found)


def many(*arrays: Any) -> list[Any]:
    """As many lanes as a block of `each` has."""
    return [np.tile(a, 256 // len(a)) for a in arrays]


def test_votes(gpu: Gpu) -> None:
    for values in (np.arange(32) % 3 == 0, np.zeros(32, bool), np.ones(32, bool)):
        inputs = many(values.astype("u4"))
        test = "setp.ne.u32 %p4, {a}, 0;\n"
        ballot = gpu.each(test + "vote.sync.ballot.b32 {d}, !%p4, -1;", "u4", *inputs)
        assert set(ballot.tolist()) == {sum(int(not v) << lane for lane, v in enumerate(values))}
        some, all_ = values.any(), values.all()
        for mode, want in (("any", some), ("all", all_), ("uni", all_ or not some)):
            text = f"{test}vote.sync.{mode}.pred %p5, %p4, -1;\nselp.u32 {{d}}, 1, 0, %p5;"
            assert set(gpu.each(text, "u4", *inputs).tolist()) == {int(want)}


def test_halves_of_a_warp_go_their_own_ways(gpu: Gpu) -> None:
    """Both halves name their own members, at the same instruction or at different ones."""
    values = np.arange(32, dtype="u4") * 7 % 13
    select = "and.b32 %r41, %r0, 31;\nsetp.lt.u32 %p4, %r41, 16;\nselp.b32 %r42, 0xffff, 0xffff0000, %p4;\n"
    want = np.repeat([values[:16].sum(), values[16:].sum()], 16)
    got = gpu.each(f"{select}redux.sync.add.u32 {{d}}, {{a}}, %r42;", "u4", *many(values))
    assert np.array_equal(got[:32], want)
    apart = "@%p4 bra low;\nredux.sync.add.u32 {d}, {a}, %r42;\nbra over;\n"
    apart += "low:\nredux.sync.add.u32 {d}, {a}, %r42;\nover:\nbar.warp.sync -1;"
    assert np.array_equal(gpu.each(select + apart, "u4", *many(values))[:32], want)


def test_matches_and_totals_of_a_warp(gpu: Gpu) -> None:
    rng = np.random.default_rng(8)
    values = rng.integers(-4, 4, 32, "i4")
    alike = [sum(int(v == w) << lane for lane, w in enumerate(values)) for v in values]
    assert gpu.each("match.any.sync.b32 {d}, {a}, -1;", "u4", *many(values))[:32].tolist() == alike
    wide = values.astype("i8") << 40
    assert gpu.each("match.any.sync.b64 {d}, {a}, -1;", "u4", *many(wide))[:32].tolist() == alike
    unsigned = values.view("u4")
    totals = {"add.s32": values.sum(), "min.s32": values.min(), "max.s32": values.max(),
              "min.u32": unsigned.min(), "max.u32": unsigned.max(), "and.b32": np.bitwise_and.reduce(values),
              "or.b32": np.bitwise_or.reduce(values), "xor.b32": np.bitwise_xor.reduce(values)}  # fmt: skip
    for name, want in totals.items():
        got = gpu.each(f"redux.sync.{name} {{d}}, {{a}}, -1;", "u4", *many(values))
        assert set(got.tolist()) == {int(want) & 0xFFFFFFFF}, name


def test_one_lane_is_elected(gpu: Gpu) -> None:
    got = gpu.each("elect.sync {d}|%p4, -1;\n@%p4 add.u32 {d}, {d}, 100;", "u4", *many(np.zeros(32, "u4")))
    assert np.count_nonzero(got[:32] >= 100) == 1
    assert len(set(got[:32].tolist())) == 2


def test_discarded_predicates(gpu: Gpu) -> None:
    """'_' in place of a result leaves the first predicate unchanged."""
    values = np.arange(300, dtype="u4")
    text = "setp.lt.u32 _|%p4, {a}, 100;\nselp.u32 {d}, 1, 0, %p4;\n@%p0 mov.u32 {d}, 9;"
    assert np.array_equal(gpu.each(text, "u4", values), values >= 100)


@pytest.mark.parametrize("seed", SEEDS)
def test_loops_of_different_lengths_meet_again(gpu: Gpu, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collatz: each lane takes its own number of steps; then all exchange their values."""
    monkeypatch.setenv("EMULATOR_SEED", str(seed))
    text = """mov.u32 {d}, 0;
mov.u32 %r40, {a};
round:
setp.le.u32 %p4, %r40, 1;
@%p4 bra over;
and.b32 %r41, %r40, 1;
setp.eq.u32 %p5, %r41, 0;
@%p5 bra even;
mad.lo.u32 %r40, %r40, 3, 1;
bra next;
even:
shr.u32 %r40, %r40, 1;
next:
add.u32 {d}, {d}, 1;
bra round;
over:
shfl.sync.bfly.b32 {d}, {d}, 1, 31, -1;"""
    values = np.arange(1, 257, dtype="u4")

    def steps(n: int) -> int:
        return 0 if n == 1 else 1 + steps(n // 2 if n % 2 == 0 else 3 * n + 1)

    want = np.array([steps(int(v)) for v in values]).reshape(-1, 2)[:, ::-1].reshape(-1)
    assert np.array_equal(gpu.each(text, "u4", values), want)


# ---- Warps and blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomic_operations(gpu: Gpu, space: str) -> None:
    """In any order of lanes: the set of results and the final value are correct."""
    place, address = "%d0", ""
    if space == "shared":
        place, address = "s", f"{THREAD_0}@%p3 st.shared.u32 [s], %r40;\nbar.sync 0;\n"
    fill = "ld.global.u32 %r40, [%d0];\nbar.sync 0;\n" + address
    give = "ld.shared.u32 %r41, [s];\nst.global.u32 [%d0], %r41;\n" if space == "shared" else ""
    keep = "mul.wide.u32 %d9, %r0, 4;\nadd.s64 %d9, %d9, %d1;\nst.global.u32 [%d9], %r2;\n"
    cases: dict[str, tuple[int, int, list[int] | None]] = {
        "add.u32 {}, 3": (5, 5 + 3 * 64, list(range(5, 5 + 3 * 64, 3))),
        "inc.u32 {}, 9": (5, (5 + 64) % 10, sorted((5 + k) % 10 for k in range(64))),
        "dec.u32 {}, 9": (5, (5 - 64) % 10, sorted((5 - k) % 10 for k in range(64))),
        "min.s32 {}, %r3": (2**32 - 10, 2**32 - 63, None),
        "max.u32 {}, %r0": (7, 63, None),
        "and.b32 {}, 6": (5, 4, [4] * 63 + [5]),
        "or.b32 {}, 6": (5, 7, [5] + [7] * 63),
        "xor.b32 {}, 1": (5, 5, [4] * 32 + [5] * 32),
        "cas.b32 {}, 5, 8": (5, 8, [5] + [8] * 63),
        "exch.b32 {}, %r0": (99, -1, None),
    }
    for text, (first, last, seen) in cases.items():
        operation = f"atom.{space}.{text.format(f'%r2, [{place}]')};"
        body = f"{fill}neg.s32 %r3, %r0;\n{operation}\n{keep}bar.sync 0;\n{give}"
        left, results = gpu.run(body, np.array([first], "u4"), np.zeros(64, "u4"), threads=64, shared=64)
        assert left[0] == last or last < 0, text
        assert seen is None or sorted(results.tolist()) == seen, text
        if last < 0:  # every value is returned once, except the one that stays
            assert sorted([*results.tolist(), left[0]]) == [*range(64), 99]


def test_atomic_sums_of_floats(gpu: Gpu) -> None:
    body = """cvt.rn.f32.u32 %f0, %r0;
cvt.f64.f32 %d9, %f0;
red.global.add.f32 [%d0], %f0;
atom.global.add.f64 %d8, [%d1], %d9;"""
    single, double = gpu.run(body, np.zeros(1, "f4"), np.ones(1, "f8"), threads=96)
    assert (single[0], double[0]) == (95 * 48, 1 + 95 * 48)


@pytest.mark.parametrize("threads", [64, 80])
def test_barriers_with_votes(gpu: Gpu, threads: int) -> None:
    body = f"""setp.ge.u32 %p1, %r0, %r1;
setp.lt.u32 %p1, %r0, 50;
bar.red.popc.u32 %r2, 0, %p1;
bar.red.and.pred %p2, 1, {-(-threads // 32) * 32}, %p1;
bar.red.or.pred %p3, 2, !%p1;
setp.lt.u32 %p4, %r0, 1000;
bar.red.and.pred %p5, 3, %p4;
selp.u32 %r3, 100, 0, %p2;
selp.u32 %r4, 1000, 0, %p3;
selp.u32 %r5, 10000, 0, %p5;
add.u32 %r2, %r2, %r3;
add.u32 %r2, %r2, %r4;
add.u32 %r2, %r2, %r5;
mul.wide.u32 %d9, %r0, 4;
add.s64 %d9, %d9, %d0;
st.global.u32 [%d9], %r2;"""
    got = gpu.run(body, np.zeros(threads, "u4"), threads=threads)[0]
    assert set(got.tolist()) == {50 + 1000 + 10000}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_whose_number_is_in_a_register(
    gpu: Gpu, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The register lives as long as the loop, though nothing else reads it."""
    monkeypatch.setenv("EMULATOR_SEED", str(seed))
    body = """mov.u32 %r1, 3;
mov.u32 %r2, 0;
again:
bar.sync %r1, 64;
mul.lo.u32 %r5, %r2, 5;
add.u32 %r6, %r5, 100;
st.global.u32 [%d0], %r6;
add.u32 %r2, %r2, 1;
setp.lt.u32 %p1, %r2, 20;
@%p1 bra again;"""
    assert gpu.run(body, np.zeros(1, "u4"), threads=64)[0][0] == 195


@pytest.mark.parametrize("seed", SEEDS)
def test_copies_of_lanes(gpu: Gpu, seed: int, tries: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """cp.async: of each 16 bytes as many are read as the lane's number says; zeros follow."""
    monkeypatch.setenv("EMULATOR_SEED", str(seed))
    body = """mul.wide.u32 %d8, %r0, 16;
add.s64 %d9, %d8, %d0;
mov.u32 %r1, s;
mad.lo.u32 %r1, %r0, 16, %r1;
and.b32 %r2, %r0, 15;
cp.async.cg.shared.global [%r1], [%d9], 16, %r2;
cp.async.commit_group;
cp.async.wait_group 0;
bar.warp.sync -1;
xor.b32 %r1, %r1, 16;
ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r1];
add.s64 %d9, %d8, %d1;
st.global.v4.u32 [%d9], {%r4, %r5, %r6, %r7};"""
    values = np.arange(512, dtype="u1").reshape(32, 16)
    got = gpu.run(body, values, np.zeros((32, 16), "u1"), shared=512)[1]
    lanes = np.arange(32) ^ 1
    assert np.array_equal(got, np.where(np.arange(16) < (lanes % 16)[:, None], values[lanes], 0))


@pytest.mark.parametrize("seed", SEEDS)
def test_tma_boxes_for_a_cluster(gpu: Gpu, memory: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block reads for both; a store that has been read may be written when its block has ended."""
    monkeypatch.setenv("EMULATOR_SEED", str(seed))
    values = np.arange(64, dtype="f4").reshape(8, 8)
    source, made = memory(256), memory(512)
    emulated_kernel.ctypes.memmove(source, values.ctypes.data, 256)
    maps = [gpu.tiled(source, (8, 8), (8, 4)), gpu.tiled(made, (8, 16), (8, 4))]
    body = f"""{INIT_S}
mov.u32 %r2, %cluster_ctarank;
mov.u64 %d6, args;
add.s64 %d7, %d6, 128;
@%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [s], 256;
{MEET}
setp.eq.and.u32 %p4, %r2, 0, %p3;
@%p4 {BOX}.multicast::cluster [s+128], [%d6, {{0, 4}}], [s], 3;
@%p4 {BOX}.multicast::cluster [s+256], [%d6, {{0, 0}}], [s], 3;
{WAIT_AT_S}
mul.lo.u32 %r4, %r2, 8;
add.u32 %r5, %r4, 4;
@%p3 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d7, {{0, %r4}}], [s+128];
@%p3 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d7, {{0, %r5}}], [s+256];
@%p3 cp.async.bulk.commit_group;
@%p3 cp.async.bulk.wait_group.read 0;
{MEET}"""
    gpu.launch(module(body, 2, 512), maps, grid=2, cluster=2, threads=64)
    got = np.frombuffer(emulated_kernel.ctypes.string_at(made, 512), "f4").reshape(2, 8, 8)
    assert np.array_equal(got, [np.roll(values, 4, 0)] * 2)


# ---- The list of instructions ------------------------------------------------------------------------------


def decoded(source: str) -> set[str]:
    """The beginnings of names that a file's decoder looks for."""
    code = re.sub(r"/\*.*?\*/", "", source, flags=re.DOTALL)
    found = re.findall(r'(?:ptx_begins|strcmp)\(i->opcode, "([^"]+)"', code)
    found += re.findall(r'^ *\{"([a-z][\w.:]*)",', code, re.MULTILINE)
    for names in re.findall(r"harmless\[\] = \{(.*?)\};", code, re.DOTALL):
        found += re.findall(r'"([^"]+)"', names)
    return {name.rstrip(".") for name in found}


def test_the_readme_lists_the_instructions() -> None:
    rows = re.findall(r"^\| `(\w+)\.c` \| ([a-z].*) \|$", (SOURCES / "README.md").read_text(), re.MULTILINE)
    listed = {file: set(names.split()) for file, names in rows if " of " not in names and "," not in names}
    has_decoder = {path.stem for path in SOURCES.glob("*.c") if "i->opcode" in path.read_text()}
    want = {file: decoded((SOURCES / f"{file}.c").read_text()) for file in listed}
    want["arithmetic"] = {name.split(".")[0] for name in want["arithmetic"]}
    assert listed == want
    assert listed.keys() >= has_decoder - {"machine", "ptx"}
