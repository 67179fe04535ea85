"""A new policy aborts running segments, or lets them end: none is of two policies."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from banyan.policy import PolicyVersion
from banyan.segment import Finish
from services.rollout.engines.scripted.engine import build
from services.rollout.engines.thread import EngineThread, Waking
from services.rollout.growth.policy_selection import Published
from services.rollout.weights.refresh import Refresher
from tests.engines.rig import BASE, OTHER, TOLERANCE, ask, gap, prompt

LENGTH = 40
LONG = 400  # tokens that no engine ends between the look at a new policy and the cut
BLOCK = 32  # tokens, of vLLM's KV cache on a CPU


class Kept:
    """An engine that outlives the thread that runs it."""

    def __init__(self, engine):
        for name in ("submit", "abort", "step", "load", "hold", "forget", "logprobs", "stats"):
            setattr(self, name, getattr(engine, name))
        if isinstance(engine, Waking):
            self.wake = engine.wake
        self.tokenizer, self._engine = engine.tokenizer, engine

    @property
    def busy(self):
        return self._engine.busy


class Files:
    """The new policy's weights, or none that fit."""

    def __init__(self, path):
        self.path = path

    @contextlib.asynccontextmanager
    async def held(self, _published):
        yield self.path


class Store:
    def __init__(self):
        self.published = []

    async def policies(self):
        return self.published


def policies(rig):
    """Return the first policy and a new one, with its weights."""
    if rig.name == "scripted":
        return PolicyVersion(1, 0, b"p0"), PolicyVersion(1, 1, b"p1"), None
    return rig.policy(BASE)[0], *rig.policy(OTHER)


def announced(policy):
    return [Published(policy, Path("."), "", 0)]


def tokens(stats, cold):
    """Return a lower bound of the sampled tokens.

    vLLM counts them at the end of a segment, and before it only reports the use of its cache: a
    prompt and its first tokens, one block; more, two.
    """
    return max(stats.sampled_tokens - cold.sampled_tokens, stats.kv_tokens // (2 * BLOCK))


async def refreshed(rig, drain_s, path=None, length=LENGTH, begun=0):
    """Refresh the policy while requests run and others arrive; return all segments.

    length: tokens of each request. begun: tokens sampled before the refresh.
    """
    old, new, weights = policies(rig)
    engine = build({"latency_s": 0.005}, old, 32) if rig.name == "scripted" else rig.engine
    engine.tokenizer.eos = frozenset()
    thread, store, ended = EngineThread(lambda: Kept(engine)), Store(), {}
    await thread.start()
    cold = await thread.stats()
    files = None if rig.name == "scripted" else Files(path or weights)
    refresher = Refresher(store, thread, files, "n", drain_s)
    running = [ask(("old", b), prompt(20), b, max_new_tokens=length) for b in range(6)]
    later = [ask(("new", b), prompt(20), b, max_new_tokens=LENGTH) for b in range(6)]
    thread.submit(running)
    try:
        async with asyncio.timeout(60):
            while (stats := await thread.stats()).running < len(running) or tokens(
                stats, cold
            ) < begun:
                await asyncio.sleep(0)
            store.published = announced(new)
            await refresher.poll()
            loading = asyncio.create_task(refresher.refresh([], []))
            await asyncio.sleep(0)
            thread.submit(later)
            cut = await loading
            ended |= {s.key: s for s in cut}
            while len(ended) < len(running) + len(later):
                ended |= {s.key: s for s in await thread.batches()}
    finally:
        await thread.stop()
    return running, later, ended, cut, refresher


@pytest.mark.parametrize("drain_s", [0.0, 30.0, 0.01])
async def test_no_segment_is_of_two_policies(any_rig, drain_s):
    old, new, _ = policies(any_rig)
    running, later, ended, cut, refresher = await refreshed(any_rig, drain_s)
    assert refresher.loaded == new
    keys = {s.key for s in cut}
    for request in [*running, *later]:
        one = ended[request.key]
        assert one.finish is (Finish.ABORTED if one.key in keys else Finish.BOUNDARY)
        assert (len(one.tokens_T) < LENGTH) == (one.key in keys) and one.policy in (old, new)
        if any_rig.name != "scripted":
            assert (
                gap(any_rig.model(BASE if one.policy == old else OTHER), one, request) < TOLERANCE
            )
    assert all(ended[r.key].policy == new for r in later) and all(s.policy == old for s in cut)
    if drain_s == 30.0:
        assert not cut and all(ended[r.key].policy == old for r in running)


async def test_a_cut_loses_what_a_drain_keeps(any_rig):
    """A drain of 30 s aborts nothing (test_no_segment_is_of_two_policies).

    Segments without a token wait instead.
    """
    _, _, _, cut, _ = await refreshed(any_rig, 0.0, length=LONG, begun=6)
    assert len(cut) == 6 and all(s.finish is Finish.ABORTED for s in cut)


async def test_a_policy_that_is_refused_lets_the_old_one_go_on(rig, tmp_path):
    """A drain without result ends: waiting segments are admitted."""
    from services.chassis.weights import file

    state = {k: v for k, v in rig.model(OTHER).state_dict().items() if "layers.1." not in k}
    bad = file.write(tmp_path, "policy-1-7", state, 1, 7, dtype="float32").manifest_path
    old, _, _ = policies(rig)
    running, later, ended, cut, refresher = await refreshed(rig, 30.0, bad)
    assert refresher.loaded is None and not cut
    assert all(ended[r.key].policy == old for r in [*running, *later])


def test_what_is_held_is_not_admitted_and_costs_no_steps(any_rig):
    engine = any_rig.engine
    engine.hold(True)
    engine.submit(ask(0, prompt(20), max_new_tokens=4))
    assert not engine.busy and engine.stats().waiting == 1 and engine.stats().running == 0
    engine.hold(False)
    assert engine.busy
    while engine.busy:
        engine.step()
