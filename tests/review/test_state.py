"""The review state: in memory, mapped, grown, copied, locked; and never read when it is damaged."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
from safetensors.numpy import load_file

from srt_peft import (
    DamagedError,
    LockedError,
    OptionError,
    ProtocolError,
    ReviewState,
    StateError,
    VersionError,
    load_scheduler,
    make_scheduler,
)


@pytest.fixture
def used():
    """A small state with a history: every column has something in it."""
    rng = np.random.default_rng(0)
    s = make_scheduler("srt", old=17, new=12, batch_size=8, identity=rng.integers(0, 256, (29, 16)).astype(np.uint8))
    for _ in range(12):
        draw = s.draw()
        s.review(draw.ids, rng.gamma(4, 1.2, draw.ids.size))
    s.state.suspend([3])
    return s


def same(a, b):
    return (a.n_old, a.columns.keys()) == (b.n_old, b.columns.keys()) and all(
        np.array_equal(a.columns[name], b.columns[name], equal_nan=a.columns[name].dtype.kind == "f")
        for name in a.columns
    )


def test_a_fresh_state():
    """SM-2's initial values, and first due times spread evenly over the first steps of each pool."""
    state = ReviewState.create(12, 8)
    assert state.due.tolist() == [0, 1, 2, 3, 4] * 2 + [0, 1] + [0, 1, 2, 3, 4, 0, 1, 2]
    assert set(state.ease) == {2.5}
    assert set(state.interval) == {1}
    assert set(state.repetitions) == set(state.visits) == {0}
    assert np.isnan(state.signal).all()
    assert (state.step, state.n, state.n_old, state.n_new) == (0, 20, 12, 8)
    state.check_valid()


def test_what_it_shows_are_copies(used):
    """Changing what was read changes nothing in the state."""
    before = used.state_dict()["columns"]
    for name in ("ease", "repetitions", "interval", "due", "signal", "visits", "suspended", "identity"):
        getattr(used.state, name)[:] = 0
    assert all(np.array_equal(before[k], v, equal_nan=k == "signal") for k, v in used.state.columns.items())


def test_a_snapshot_is_a_copy_and_can_be_restored(used, tmp_path):
    """What happens to the live state later does not reach the snapshot, nor the other way round."""
    used.state.snapshot(tmp_path / "snap")
    kept = ReviewState.restore(tmp_path / "snap")
    assert same(kept, used.state)
    used.review(used.draw().ids, np.ones(used._drawn.ids.size))
    assert same(ReviewState.open(tmp_path / "snap"), kept)
    restored = ReviewState.restore(tmp_path / "snap", tmp_path / "live")
    assert same(restored, kept)
    restored.suspend([0])
    assert not ReviewState.open(tmp_path / "snap").suspended[0]


def test_a_snapshot_replaces_the_one_before(used, tmp_path):
    """The older one's readers keep what they have mapped; no file of it is left behind."""
    used.state.snapshot(tmp_path / "snap")
    older = ReviewState.open(tmp_path / "snap")
    before = {name: column.copy() for name, column in older.columns.items()}
    used.review(used.draw().ids, np.ones(used._drawn.ids.size))
    used.state.snapshot(tmp_path / "snap")
    assert same(ReviewState.open(tmp_path / "snap"), used.state)
    assert all(np.array_equal(before[k], v, equal_nan=k == "signal") for k, v in older.columns.items())
    assert len(list((tmp_path / "snap").glob("columns-*"))) == 1


def test_saving_twice_gives_the_same_bytes(used, tmp_path):
    for name in "ab":
        used.save(tmp_path / name)
    for file in ("state.json", "columns-0.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_other_tools_read_the_columns(used, tmp_path):
    """The columns file is a plain safetensors file, and the manifest plain JSON."""
    used.save(tmp_path / "snap")
    theirs = load_file(tmp_path / "snap" / "columns-0.safetensors")
    assert theirs.keys() == used.state.columns.keys()
    for name, column in used.state.columns.items():
        assert np.array_equal(theirs[name], column, equal_nan=name == "signal")
    manifest = json.loads((tmp_path / "snap" / "state.json").read_text())
    assert (manifest["format"], manifest["version"]) == ("srt_peft review state", 1)
    assert (manifest["old"], manifest["new"], manifest["scheduler"]["name"]) == (17, 12, "srt")


def test_a_mapped_state_lives_on_disk(used, tmp_path):
    """Written through the mapping, closed, opened by another, and the same."""
    used.state.snapshot(tmp_path / "snap")
    with ReviewState.restore(tmp_path / "snap", tmp_path / "live") as state:
        state.suspend([5])
        state.check_valid()
    again = ReviewState.open(tmp_path / "live")
    assert same(again, state)
    assert again.suspended[5]
    with pytest.raises(StateError, match="open to read only, or closed: open it with 'r\\+'"):
        again.suspend([1])
    with ReviewState.open(tmp_path / "live", "r+") as third:
        third.revive([5])
    assert not ReviewState.open(tmp_path / "live").suspended[5]


def test_a_mapped_scheduler_goes_on_as_one_in_memory(tmp_path):
    """The same draws and the same bytes, whether the state is in memory or mapped."""
    rng = np.random.default_rng(1)
    with make_scheduler("srt", old=50, new=30, batch_size=16, folder=tmp_path / "live") as mapped:
        memory = make_scheduler("srt", old=50, new=30, batch_size=16)
        for _ in range(40):
            nll = rng.gamma(4, 1.2, 16)
            a, b = mapped.draw(), memory.draw()
            assert np.array_equal(a.ids, b.ids)
            mapped.review(a.ids, nll[: a.ids.size])
            memory.review(b.ids, nll[: b.ids.size])
        assert same(mapped.state, memory.state)
        mapped.save(tmp_path / "snap")
    with load_scheduler(tmp_path / "snap", folder=tmp_path / "live") as again:
        assert np.array_equal(again.draw().ids, memory.draw().ids)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("identity", [False, True])
def test_growing(mapped, identity, tmp_path):
    """Old rows keep their state, fresh ones begin at the present step, and old stays in front of new."""
    rng = np.random.default_rng(2)
    hashes = rng.integers(0, 256, (30, 16)).astype(np.uint8)
    pick = (lambda *rows: hashes[np.r_[rows]]) if identity else (lambda *rows: None)
    folder = tmp_path / "live" if mapped else None
    with make_scheduler("srt", old=10, new=8, batch_size=6, folder=folder, identity=pick(slice(0, 18))) as s:
        for _ in range(9):
            draw = s.draw()
            s.review(draw.ids, rng.gamma(4, 1.2, draw.ids.size))
        before = {name: column.copy() for name, column in s.state.columns.items()}
        s.state.grow(old=5, new=7, identity=pick(slice(18, 30)))
        assert (s.state.n_old, s.state.n_new, s.state.step) == (15, 15, 9)
        kept, fresh = np.r_[0:10, 15:23], np.r_[10:15, 23:30]
        for name in before.keys() - {"clock"}:
            assert np.array_equal(s.state.columns[name][kept], before[name], equal_nan=name == "signal")
        assert s.state.due[fresh].tolist() == [9, 10, 11, 12, 13, 9, 10, 11, 12, 13, 9, 10]
        assert set(s.state.visits[fresh]) == {0}
        s.check_valid()
        drawn = s.draw()
        s.review(drawn.ids, np.ones(drawn.ids.size))
        s.check_valid()
        if identity:
            assert np.array_equal(s.state.identity, hashes[np.r_[0:10, 18:23, 10:18, 23:30]])


def test_a_change_between_draw_and_review_is_refused(used):
    """Growing moves the ids of new examples, so a draw from before is no longer of this state."""
    draw = used.draw()
    used.state.suspend([1])
    with pytest.raises(ProtocolError, match=r"changed .* between the draw of step 12 and its review"):
        used.review(draw.ids, np.ones(draw.ids.size))


def test_check_valid_lists_every_broken_rule(used):
    used.state.columns["ease"][2] = 20
    used.state.columns["interval"][[4, 6]] = 0
    with pytest.raises(StateError) as error:
        used.state.check_valid()
    assert "ease is at least 1.00: broken by 1, first by 2" in str(error.value)
    assert "the interval lies between 1 and 2**30: broken by 2, first by 4" in str(error.value)


# --- one writer -------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from srt_peft import ReviewState
state = ReviewState.restore(sys.argv[1], sys.argv[2])
state.suspend([1])
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def held(used, tmp_path):
    """A live state that another process is writing."""
    used.state.snapshot(tmp_path / "snap")
    command = [sys.executable, "-c", HOLD, str(tmp_path / "snap"), str(tmp_path / "live")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_only_one_process_writes(held, tmp_path):
    """While it lives, others are refused; they may look with live=True."""
    for attempt in (
        lambda: ReviewState.open(tmp_path / "live", "r+"),
        lambda: ReviewState.restore(tmp_path / "snap", tmp_path / "live"),
    ):
        with pytest.raises(LockedError, match="live is being written by another process"):
            attempt()
    with pytest.raises(StateError, match="is being written now, or its writer was killed"):
        ReviewState.open(tmp_path / "live")
    assert ReviewState.open(tmp_path / "live", live=True).suspended[1]
    with pytest.raises(LockedError, match="is being written by another process"):
        ReviewState.create(1, 1).snapshot(tmp_path / "live")


def test_the_lock_dies_with_its_process(held, tmp_path):
    """Killed with -9, the writer holds nothing; what it left is not trusted, and a snapshot replaces it."""
    os.kill(held.pid, signal.SIGKILL)
    held.wait()
    for mode in ("r", "r+"):
        with pytest.raises(StateError, match=r"from the newest snapshot, ReviewState.restore\(snapshot, folder\)"):
            ReviewState.open(tmp_path / "live", mode)
    with pytest.raises(StateError, match="holds a live review state, which a snapshot would overwrite"):
        ReviewState.create(1, 1).snapshot(tmp_path / "live")
    with ReviewState.restore(tmp_path / "snap", tmp_path / "live") as state:
        assert not state.suspended[1]


def test_what_a_killed_writer_left_can_be_begun_anew(held, tmp_path):
    """Killed before its first checkpoint there is no snapshot to restore, and nothing to lose."""
    os.kill(held.pid, signal.SIGKILL)
    held.wait()
    with ReviewState.create(3, 4, folder=tmp_path / "live") as state:
        assert state.n == 7
    assert ReviewState.open(tmp_path / "live").n == 7


SAVE = """
import sys
from srt_peft import make_scheduler
s = make_scheduler("srt", old=500, new=500, batch_size=8)
while True:
    s.review(s.draw().ids, [1.0] * 8)
    s.save(sys.argv[1])
    print(s.state.step, flush=True)
"""


def test_a_snapshot_is_read_while_it_is_replaced(tmp_path):
    """Again and again, in another process: each read is of one save or the next, never of a mixture, never refused."""
    process = subprocess.Popen([sys.executable, "-c", SAVE, tmp_path / "snap"], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    try:
        steps = []
        for _ in range(400):
            state = ReviewState.open(tmp_path / "snap")
            state.check_valid()
            assert state.visits.sum() == 8 * state.step
            steps.append(state.step)
        assert steps == sorted(steps)
        assert steps[-1] > steps[0], "the test is about saves that happen meanwhile"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_save_that_is_killed_leaves_a_whole_snapshot(tmp_path):
    """Killed with -9 at twenty random moments: what is there is the save before, or the one that was under way."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        process = subprocess.Popen([sys.executable, "-c", SAVE, tmp_path / "snap"], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(rng.random() * 0.05)
        process.kill()
        process.wait()
        said = [int(line) for line in process.stdout.read().split()]
        process.stdout.close()
        state = load_scheduler(tmp_path / "snap").state
        state.check_valid()
        assert state.step >= max(said, default=1)


def test_a_forked_child_does_not_keep_the_lock(used, tmp_path):
    """A worker that outlives its parent's state holds no lock, and does not close the state of its parent."""
    used.state.snapshot(tmp_path / "snap")
    state = ReviewState.restore(tmp_path / "snap", tmp_path / "live")
    child = os.fork()
    if child == 0:
        state.close()
        time.sleep(30)
        os._exit(0)
    try:
        time.sleep(0.2)
        with pytest.raises(StateError, match="is being written now"):
            ReviewState.open(tmp_path / "live")
        state.close()
        ReviewState.open(tmp_path / "live", "r+").close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_state_that_is_simply_dropped_is_closed(used, tmp_path):
    """Nobody called close, and yet the folder is whole when the last reference, or the process, is gone."""
    used.state.snapshot(tmp_path / "snap")
    ReviewState.restore(tmp_path / "snap", tmp_path / "a").suspend([2])
    assert ReviewState.open(tmp_path / "a").suspended[2]
    script = HOLD.replace("time.sleep(60)", "")
    subprocess.run([sys.executable, "-c", script, tmp_path / "snap", tmp_path / "b"], check=True, capture_output=True)
    assert ReviewState.open(tmp_path / "b").suspended[1]


# --- what is refused --------------------------------------------------------------------------------------------


@pytest.fixture
def saved(used, tmp_path):
    used.save(tmp_path / "snap")
    return tmp_path / "snap"


def refused(folder):
    """Both ways of reading refuse the folder with an error of ours."""
    for read in (ReviewState.open, load_scheduler):
        with pytest.raises(StateError) as error:
            read(folder)
        assert str(folder) in str(error.value), "the error names the file"
    return str(error.value)


def test_every_flipped_bit_of_the_manifest_is_refused(saved):
    """All of them, some ten thousand."""
    path = saved / "state.json"
    whole = path.read_bytes()
    for position in range(len(whole)):
        for bit in range(8):
            broken = bytearray(whole)
            broken[position] ^= 1 << bit
            path.write_bytes(broken)
            with pytest.raises(StateError):
                ReviewState.open(saved)
    path.write_bytes(whole)
    ReviewState.open(saved)


def test_flipped_bits_of_the_columns_are_refused(saved):
    """Every bit of the header, and thousands anywhere, one at a time and in bursts."""
    path = saved / "columns-0.safetensors"
    whole = path.read_bytes()
    head = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(0)
    flips = [[(byte, bit)] for byte in range(head) for bit in range(8)]
    flips += [
        [(int(b), int(rng.integers(8))) for b in rng.integers(0, len(whole), rng.integers(1, 6))] for _ in range(2000)
    ]
    for flip in flips:
        broken = bytearray(whole)
        for byte, bit in set(flip):
            broken[byte] ^= 1 << bit
        path.write_bytes(broken)
        with pytest.raises(DamagedError, match=r"is damaged|is truncated"):
            ReviewState.open(saved)


@pytest.mark.parametrize("file", ["state.json", "columns-0.safetensors"])
def test_every_truncation_and_extension_is_refused(saved, file):
    path = saved / file
    whole = path.read_bytes()
    for content in [whole[:n] for n in range(len(whole))] + [whole + b"\0", whole + b"\n", whole + whole]:
        path.write_bytes(content)
        with pytest.raises(StateError):
            ReviewState.open(saved)


def edited(saved, **changes):
    """The manifest with other content, and the check that belongs to it."""
    path = saved / "state.json"
    manifest = json.loads(path.read_text()) | changes
    del manifest["check"]
    body = (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode()
    path.write_text(json.dumps(manifest | {"check": zlib.crc32(body)}, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize("version", [0, 2, 99, "1", None])
def test_another_version_is_refused_by_name(saved, version):
    """Whole, but not ours to read: the message says so, and what to do."""
    edited(saved, version=version)
    with pytest.raises(VersionError, match=r"this srt-peft reads version 1.*pip install --upgrade"):
        ReviewState.open(saved)


@pytest.mark.parametrize(
    "change", [{"old": 18}, {"new": 11}, {"old": -1}, {"identity": False}, {"file": "columns-7.safetensors"}]
)
def test_sizes_that_do_not_fit_are_refused(saved, change):
    edited(saved, **change)
    refused(saved)


@pytest.mark.parametrize(
    "change", [{"file": "../snap/columns-0.safetensors"}, {"old": "17"}, {"checksums": {}}, {"file": 3}]
)
def test_a_manifest_that_was_forged_is_refused(saved, change):
    """Even with the right check, what it says must make sense."""
    edited(saved, **change)
    refused(saved)


def test_foreign_files_are_refused(saved, tmp_path):
    """Other JSON, other safetensors, another state's columns, no folder, an empty one."""
    columns = (saved / "columns-0.safetensors").read_bytes()
    for content in (b"", b"{}\n", b"[]", b"null", b"\xff\xfe", b'{"check": 0}', b"[" * 100_000):
        shutil.copytree(saved, tmp_path / "x")
        (tmp_path / "x" / "state.json").write_bytes(content)
        assert "is damaged, or is not ours" in refused(tmp_path / "x")
        shutil.rmtree(tmp_path / "x")
    other = make_scheduler("srt", old=17, new=12, batch_size=8, identity=np.zeros((29, 16), np.uint8))
    other.save(tmp_path / "other")
    (tmp_path / "other" / "columns-0.safetensors").write_bytes(columns)
    assert "do not have their checksums" in refused(tmp_path / "other")
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "missing", saved / "state.json"):
        assert "holds no review state" in refused(nothing)


def test_a_state_without_a_scheduler_says_so(used, tmp_path):
    used.state.snapshot(tmp_path / "snap")
    with pytest.raises(StateError, match="holds a review state without a scheduler"):
        load_scheduler(tmp_path / "snap")


def test_creating_over_a_state_is_refused(saved):
    with pytest.raises(StateError, match="holds a review state already"):
        make_scheduler("srt", old=1, new=1, batch_size=1, folder=saved)
    ReviewState.open(saved)


def test_bad_settings_of_a_state():
    with pytest.raises(OptionError) as error:
        ReviewState.create(-1, 2.5, stagger=0, initial_ease=0.5)
    assert len(error.value.faults) == 4
    with pytest.raises(OptionError, match=r"identity is float64 of shape \(3,\): expected uint8 of shape \(2, 16\)"):
        ReviewState.create(1, 1, identity=np.zeros(3))
    with pytest.raises(OptionError, match="mode = 'w'"):
        ReviewState.open("anywhere", "w")
