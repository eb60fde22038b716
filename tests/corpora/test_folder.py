"""The folder that comes out: whole or not there, and never a mixture."""

import json

import pytest

from srt_peft.corpora.folder import MANIFEST, input_of, sha256, staged
from srt_peft.errors import LockedError, OptionError


def made(out, *, options=None, fail=None, log=None):
    """Two parts, one output."""

    def part(name):
        def make(path):
            if log is not None:
                log.append(name)
            if fail == name:
                raise KeyboardInterrupt
            path.write_text(f"{name}\n")

        return make

    def make(folder):
        parts = [folder.part(name, part(name)) for name in ("one", "two")]
        (folder.path / "old.jsonl").write_text("".join(path.read_text() for path in parts))
        folder.counts = {"rows": 2}

    return staged(out, "corpus test", [], options or {"share": 0.1}, make)


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_folder_that_is_there_is_whole(tmp_path):
    returned = made(tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    assert manifest == returned
    assert manifest["counts"] == {"rows": 2}
    assert manifest["options"] == {"share": 0.1}
    assert {"srt-peft", "python", "sentencex", "datasketch"} <= manifest["versions"].keys()
    assert manifest["outputs"] == {"old.jsonl": {"bytes": 8, "sha256": sha256(tmp_path / "out/old.jsonl")}}
    assert sorted(path.name for path in tmp_path.rglob("*")) == [MANIFEST, "old.jsonl", "out"]


def test_what_was_finished_before_a_kill_is_not_made_again(tmp_path):
    log = []
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "out", fail="two", log=log)
    assert not (tmp_path / "out").exists()
    made(tmp_path / "out", log=log)
    assert log == ["one", "two", "two"]
    made(tmp_path / "straight")
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "straight")


def test_a_folder_of_other_options_is_refused_by_name(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        made(tmp_path / "out", fail="two")
    with pytest.raises(OptionError, match=r"out\.partial = begun with other options: .* delete the folder"):
        made(tmp_path / "out", options={"share": 0.2})


def test_what_is_there_is_never_written_over(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(OptionError, match="it is there already: name another folder, or delete it"):
        made(tmp_path / "out")


def test_two_do_not_write_one_folder(tmp_path):
    def make(_folder):
        with pytest.raises(LockedError, match=r"out\.partial is being written"):
            made(tmp_path / "out")

    staged(tmp_path / "out", "a", [], {}, make)


def test_a_fault_of_the_inputs_leaves_nothing(tmp_path):
    def make(folder):
        (folder.path / "old.jsonl").write_text("begun")
        raise OptionError("the snapshots", ["nothing differs"])

    with pytest.raises(OptionError, match="nothing differs"):
        staged(tmp_path / "out", "a", [], {}, make)
    assert list(tmp_path.iterdir()) == []


def test_killed_just_before_the_rename_it_is_only_renamed(tmp_path, monkeypatch):
    log = []
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            made(tmp_path / "out", log=log)
    made(tmp_path / "straight")
    made(tmp_path / "out", log=log)
    assert log == ["one", "two"]
    assert bytes_of(tmp_path / "out") == bytes_of(tmp_path / "straight")


def test_what_is_said_of_inputs(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    assert input_of(files[0]) == {"path": str(files[0]), "bytes": 1, "sha256": sha256(files[0])}
    before = input_of(tmp_path, files)
    assert (before["files"], before["bytes"]) == (2, 2)
    (tmp_path / "b.txt").write_text("c")
    assert input_of(tmp_path, files)["sha256"] != before["sha256"]
