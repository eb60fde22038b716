"""The review log: complete, readable while it grows, and cut cleanly."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from srt_peft import DamagedError, LockedError, ReviewLog, StateError, VersionError, load_scheduler, make_scheduler
from tests.review import twin


def run(s, steps, seed=0):
    """Drive a scheduler with signals that depend on the step alone."""
    for _ in range(steps):
        draw = s.draw()
        s.review(draw.ids, np.random.default_rng([seed, draw.step]).gamma(4, 1.2, draw.ids.size))


def test_the_log_replayed_gives_the_state(tmp_path):
    """From the log alone, by a naive replay, the very state that the scheduler has."""
    with make_scheduler("srt", old=40, new=20, batch_size=16, log=tmp_path / "log") as s:
        run(s, 100)
    records = ReviewLog(tmp_path / "log").records()
    replay = twin.Twin("srt", 40, 20, 16, 0)
    for step in range(100):
        asked = records[(records["step"] == step) & (records["id"] >= 0)]
        assert np.array_equal(asked["pool"], asked["id"] >= 40)
        assert asked["quality"].tolist() == [twin.quality(x) for x in asked["signal"].tolist()]
        replay.review(asked["id"].tolist(), asked["signal"])
    replay.check_state(s.state)


def test_every_step_is_in_the_log(tmp_path):
    """A step in which nothing was drawn leaves a record, too."""
    with make_scheduler("srt", old=3, new=0, batch_size=2, log=tmp_path / "log") as s:
        run(s, 50)
        log = ReviewLog(tmp_path / "log")
        assert np.unique(log.records()["step"]).tolist() == list(range(50))
        first, counts = log.counts()
        assert (first, counts.shape) == (0, (50, 2))
        assert counts.sum() == s.state.visits.sum()
        log.check_valid()


def test_resuming_cuts_the_log_to_the_snapshot(tmp_path):
    """What was logged after the snapshot goes; run again, the log is the same bytes as one never stopped."""
    with make_scheduler("srt", old=30, new=30, batch_size=8, log=tmp_path / "log") as s:
        run(s, 20)
        s.save(tmp_path / "snap")
        run(s, 15)
    whole = (tmp_path / "log").read_bytes()
    with load_scheduler(tmp_path / "snap", log=tmp_path / "log") as s:
        assert ReviewLog(tmp_path / "log").records()["step"].max() == 19
        run(s, 15)
    assert (tmp_path / "log").read_bytes() == whole


def test_a_record_cut_short_is_not_read_and_is_dropped(tmp_path):
    with make_scheduler("srt", old=30, new=30, batch_size=8, log=tmp_path / "log") as s:
        run(s, 5)
    whole = (tmp_path / "log").read_bytes()
    for cut in (1, 7, 15):
        (tmp_path / "log").write_bytes(whole[:-cut])
        assert len(ReviewLog(tmp_path / "log")) == 39
        with ReviewLog(tmp_path / "log", "a") as log:
            log.append(5, [1], [0.5], [5], n_old=30)
        assert ReviewLog(tmp_path / "log").records()["step"].tolist()[-2:] == [4, 5]


WRITE = """
import sys
import numpy as np
from srt_peft import make_scheduler
s = make_scheduler("srt", old=3000, new=3000, batch_size=512, log=sys.argv[1])
while True:
    draw = s.draw()
    s.review(draw.ids, draw.ids % 9)
    print(draw.step, flush=True)
"""


def test_it_is_read_while_it_grows_and_survives_a_kill(tmp_path):
    """What another process has reviewed is there at once; killed with -9, the log is whole and can be gone on with."""
    process = subprocess.Popen([sys.executable, "-c", WRITE, tmp_path / "log"], stdout=subprocess.PIPE, text=True)
    for _ in range(30):
        step = int(process.stdout.readline())
        records = ReviewLog(tmp_path / "log").records()
        assert np.unique(records["step"]).tolist()[: step + 1] == list(range(step + 1))
    with pytest.raises(LockedError, match="is being written by another process"):
        ReviewLog(tmp_path / "log", "a")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    with ReviewLog(tmp_path / "log", "a") as log:
        log.check_valid()
        assert log.truncate(10) > 0
        assert log.records()["step"].max() == 9


FULL = """
import resource, signal, sys
from srt_peft import StateError, make_scheduler
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
s = make_scheduler("srt", old=50, new=50, batch_size=20, stagger=1, log=sys.argv[1])
s.review(s.draw().ids, [1.0] * 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (64 + 20 * 16 + 40, resource.RLIM_INFINITY))
draw = s.draw()
try:
    s.review(draw.ids, [1.0] * 20)
except StateError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
s.review(draw.ids, [1.0] * 20)
s.review(s.draw().ids, [1.0] * 20)
"""


def test_a_full_disk_leaves_log_and_state_as_they_were(tmp_path):
    """The review is refused whole, and can be made again once there is room."""
    command = [sys.executable, "-c", FULL, tmp_path / "log"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "could not be written (File too large); it is as it was before step 1" in out
    log = ReviewLog(tmp_path / "log")
    log.check_valid()
    assert log.records()["step"].tolist() == [0] * 20 + [1] * 20 + [2] * 20


def test_a_new_scheduler_does_not_empty_the_log_of_another(tmp_path):
    with make_scheduler("srt", old=30, new=30, batch_size=8, log=tmp_path / "log") as s:
        run(s, 3)
    with pytest.raises(StateError, match="holds the reviews of another run"):
        make_scheduler("srt", old=30, new=30, batch_size=8, log=tmp_path / "log")
    assert len(ReviewLog(tmp_path / "log")) == 24


def test_a_step_that_is_logged_again_replaces_the_first(tmp_path):
    """As when a review was interrupted right after it was logged."""
    with ReviewLog(tmp_path / "log", "a") as log:
        for step in (0, 1, 1):
            log.append(step, [1, 2], [0.5, 0.5], [5, 5], n_old=0)
        assert log.records()["step"].tolist() == [0, 0, 1, 1]


def test_foreign_and_damaged_logs_are_refused(tmp_path):
    path = tmp_path / "log"
    with pytest.raises(StateError, match="does not exist: expected a review log"):
        ReviewLog(path)
    with ReviewLog(path, "a") as log:
        log.append(3, [1, 2], [0.5, 0.1], [5, 5], n_old=0)
        log.append(4, [], [], [], n_old=0)
    whole = path.read_bytes()
    for content in (b"no log", b"{}" + b" " * 80, whole[:30], whole[1:]):
        path.write_bytes(content)
        with pytest.raises(DamagedError, match="is no review log"):
            ReviewLog(path)
    path.write_bytes(whole.replace(b'"version": 1', b'"version": 7'))
    with pytest.raises(VersionError, match="version 7; this srt-peft reads version 1"):
        ReviewLog(path)
    path.write_bytes(whole[:64] + whole[-16:] + whole[64:-16])
    with pytest.raises(DamagedError, match="its steps go back"):
        ReviewLog(path).check_valid()
    with pytest.raises(StateError, match="is open for reading"):
        ReviewLog(path).append(5, [], [], [], n_old=0)


def test_a_header_cut_short_is_begun_again(tmp_path):
    """A kill in the very first write leaves a part of the header: that is an empty log."""
    path = tmp_path / "log"
    with ReviewLog(path, "a"):
        pass
    head = path.read_bytes()
    for cut in range(len(head)):
        path.write_bytes(head[:cut])
        with ReviewLog(path, "a") as log:
            assert len(log) == 0
        assert path.read_bytes() == head
