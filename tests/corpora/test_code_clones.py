"""Which clones were given, and which are old, new, or neither: real repositories with dates of their own."""

import os
import subprocess

import pytest

from srt_peft.corpora import git as plumbing
from srt_peft.corpora.code import clones as given
from srt_peft.corpora.code.clones import clones_of, era
from srt_peft.corpora.code.options import Options, checked
from srt_peft.errors import DamagedError, OptionError
from tests.corpora.clones import commit, git, modules

OPTIONS = Options("2022-01", "2024-07", "any", 1000, 0.02)


def era_of(repo):
    (clone,) = clones_of([str(repo)])
    return era(clone, OPTIONS.cutoff, OPTIONS.birth)


def test_an_old_repository_is_read_as_it_was_at_the_cutoff(tmp_path):
    repo = commit(tmp_path / "a", "2019-03-01", modules(0, 1))
    commit(repo, "2021-12-31", modules(1, 1))
    then = git(repo, "rev-parse", "HEAD")
    commit(repo, "2022-01-01", modules(2, 1))
    found = era_of(repo)
    assert (found.kind, found.read.id) == ("old", then)


def test_a_new_repository_is_read_at_its_tip(tmp_path):
    repo = commit(tmp_path / "a", "2024-08-01", modules(0, 1))
    commit(repo, "2025-01-01", modules(1, 1))
    found = era_of(repo)
    assert (found.kind, found.read.id, found.before) == ("new", git(repo, "rev-parse", "HEAD"), None)


@pytest.mark.parametrize("day", ["2022-01-01", "2023-05-05", "2024-07-31"])
def test_between_the_dates_is_neither(tmp_path, day):
    """The month that is named by --new-after belongs to what is between."""
    found = era_of(commit(tmp_path / "a", day, modules(0, 1)))
    assert (found.kind, found.read) == ("created between the dates", None)
    assert found.before is not None


def test_a_rewritten_history_is_neither_old_nor_new(tmp_path):
    """Written in 2019, recorded anew in 2025: not what stood there in 2021, and not new."""
    found = era_of(commit(tmp_path / "a", "2025-02-02", modules(0, 1), authored="2019-01-01"))
    assert (found.kind, found.read) == ("older than its first commit", None)
    assert found.before is not None


def test_another_branch_from_before_denies_that_a_repository_is_new(tmp_path):
    """A history that was begun anew, on an orphan branch, beside what it was."""
    repo = commit(tmp_path / "a", "2020-01-01", modules(0, 1))
    git(repo, "branch", "legacy")
    git(repo, "checkout", "-q", "--orphan", "fresh")
    commit(repo, "2025-01-01", {})
    git(repo, "branch", "-D", "main")
    assert era_of(repo).kind == "older than its first commit"


def test_a_clock_that_was_wrong_once_lets_nothing_later_into_the_old(tmp_path):
    repo = commit(tmp_path / "a", "2019-01-01", modules(0, 1))
    then = git(repo, "rev-parse", "HEAD")
    commit(repo, "2023-01-01", modules(1, 1))
    commit(repo, "2005-01-01", modules(2, 1))  # after 2023, whatever it says
    assert era_of(repo).read.id == then


@pytest.mark.parametrize("day", ["2090-01-01", "1970-01-01"])
def test_an_impossible_date_is_no_date(tmp_path, day):
    repo = commit(tmp_path / "a", "2020-01-01", modules(0, 1))
    when = "2090-01-01T12:00:00Z" if day == "2090-01-01" else "@0 +0000"
    git(repo, "commit", "-q", "--amend", "-m", "when", when=when, authored=when)
    assert era_of(repo).kind == "impossible date"


def test_an_empty_repository_is_told(tmp_path):
    git(tmp_path, "init", "-q", "a")
    assert era_of(tmp_path / "a").kind == "empty"


def test_bare_and_mirror_clones_and_worktrees_are_clones(tmp_path):
    repo = commit(tmp_path / "a", "2020-01-01", modules(0, 1))
    git(tmp_path, "clone", "-q", "--mirror", str(repo), "b.git")
    git(tmp_path, "clone", "-q", "--bare", str(repo), "c.git")
    git(repo, "worktree", "add", "-q", str(tmp_path / "d"))
    head = git(repo, "rev-parse", "HEAD")
    for name in ("a", "b.git", "c.git", "d"):
        assert era_of(tmp_path / name).read.id == head


def test_the_default_branch_is_the_remotes_and_not_what_is_checked_out(tmp_path):
    repo = commit(tmp_path / "a", "2025-01-01", modules(0, 1))
    git(tmp_path, "clone", "-q", str(repo), "b")
    commit(tmp_path / "b", "2025-02-01", modules(1, 1))
    assert era_of(tmp_path / "b").read.id == git(repo, "rev-parse", "HEAD")


def test_clones_are_found_in_folders_and_lists_once_each_oldest_first(tmp_path):
    commit(tmp_path / "src/owner/late", "2025-01-01", modules(0, 1))
    commit(tmp_path / "src/owner/early", "2020-01-01", modules(1, 1))
    (tmp_path / "src/notes").mkdir()
    listed = tmp_path / "list.txt"
    listed.write_text(f"{tmp_path}/src/owner/late\r\n\r\n# mine\r\n", encoding="utf-8-sig")  # as Notepad has it
    found = clones_of([str(tmp_path / "src"), str(listed)])
    assert [clone.name for clone in found] == ["owner/early", "owner/late"]


def test_a_repository_is_called_as_where_it_came_from_without_its_password(tmp_path):
    repo = commit(tmp_path / "a", "2020-01-01", modules(0, 1))
    for address in (
        "https://me:hunter2@example.org/owner/name.git",
        "git@example.org:owner/name",
        "ssh://x/y/owner/name/",
    ):
        git(repo, "config", "remote.origin.url", address)
        assert clones_of([str(repo)])[0].name == "owner/name"


def test_two_of_one_name_are_told_apart(tmp_path):
    for owner in ("x", "y"):
        commit(tmp_path / owner / "same", "2020-01-01", {"a.py": owner})
    names = [clone.name for clone in clones_of([str(tmp_path / "x/same"), str(tmp_path / "y/same")])]
    assert names[0] == "same"
    assert names[1].startswith("same@")


def test_all_that_cannot_be_read_is_told_at_once(tmp_path):
    """A shallow and a partial clone do not know their first commit, or their files; no folder and no clone is none."""
    repo = commit(tmp_path / "a", "2020-01-01", modules(0, 1))
    commit(repo, "2021-01-01", modules(1, 1))
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{repo}", "shallow")
    git(tmp_path, "clone", "-q", "--bare", "--filter=blob:none", f"file://{repo}", "partial")
    (tmp_path / "plain").mkdir()
    (tmp_path / "empty.txt").write_text("\n")
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(str(tmp_path / name) for name in ("shallow", "partial", "plain", "gone")))
    with pytest.raises(OptionError) as caught:
        clones_of([str(listed), str(tmp_path / "plain"), str(tmp_path / "empty.txt"), str(tmp_path / "nowhere")])
    said = str(caught.value)
    assert len(caught.value.faults) == 7
    for name, words in (("shallow", "shallow clone"), ("partial", "partial clone"), ("gone", "no git repository")):
        assert any(f"/{name} " in fault and words in fault for fault in caught.value.faults)
    assert "git fetch --unshallow" in said
    assert "nowhere does not exist" in said


def test_without_git_it_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OptionError, match="git is not installed"):
        plumbing.check_git()


def test_a_damaged_repository_is_named(tmp_path):
    repo = commit(tmp_path / "a", "2020-01-01", modules(0, 1))
    (clone,) = clones_of([str(repo)])
    blob = git(repo, "rev-parse", "HEAD:src/module_0.py")
    (repo / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with plumbing.blobs(clone.git) as blobs, pytest.raises(DamagedError, match="git fsck"):
        blobs.read(blob)


def test_nothing_of_a_repository_is_run_and_nothing_of_the_user_is_read(tmp_path, monkeypatch):
    """Hooks, monitors, signatures' programs, an alias and a user's own settings would each leave a file behind."""
    repo = commit(tmp_path / "a", "2025-01-01", {**modules(0, 2), ".gitattributes": "*.py linguist-generated\n"})
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    for hook in ("post-index-change", "reference-transaction", "post-checkout"):
        (repo / ".git/hooks").mkdir(exist_ok=True)
        os.link(trap, repo / ".git/hooks" / hook)
    for name in (
        "core.fsmonitor",
        "gpg.program",
        "core.pager",
        "core.sshCommand",
        "diff.external",
        "core.alternateRefsCommand",
    ):
        git(repo, "config", name, str(trap))
    git(repo, "config", "log.showSignature", "true")
    users = tmp_path / "users"
    users.write_text(f"[core]\n\tfsmonitor = {trap}\n[include]\n\tpath = {tmp_path}/none\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(users))
    for name in ("GIT_DIR", "GIT_OBJECT_DIRECTORY", "GIT_INDEX_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    (clone,) = clones_of([str(repo)])
    found = era(clone, OPTIONS.cutoff, OPTIONS.birth)
    paths = [entry.path for entry in plumbing.tree(clone.git, found.read.id)]
    said = plumbing.attributes(clone.git, found.read.id, paths, ["linguist-generated"])
    assert said == {path: {"linguist-generated"} for path in paths if path.endswith(b".py")}
    assert not (tmp_path / "sprung").exists()


def test_a_repository_of_another_user_is_read(tmp_path):
    """Git refuses these to who works in them; we run nothing of theirs."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    repo = commit(tmp_path / "a", "2020-01-01", modules(0, 1))
    for path in (repo, *repo.rglob("*")):
        os.chown(path, 12345, 12345)
    refused = subprocess.run(
        ["git", "-C", str(repo), "log"], capture_output=True, check=False, env={"PATH": os.environ["PATH"]}
    )
    assert b"dubious ownership" in refused.stderr
    assert era_of(repo).kind == "old"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"old_before": "2024-09", "new_after": "2024-07"}, "is after --new-after"),
        ({"new_after": "2999-01"}, "--new-after = 2999-01 is in the future"),
        ({"old_before": "yesterday"}, "--old-before = 'yesterday': expected a day or a month"),
        ({"old_before": "2022-13"}, "expected a day or a month"),
        ({"per_repo": 0}, "--per-repo = 0"),
        ({"held_out": 1.0}, "--held-out = 1.0"),
        ({"licences": "MTI"}, "did you mean 'MIT'"),
        ({"licences": ","}, "--licences = ',': an empty list. Expected permissive, any"),
    ],
)
def test_options_that_cannot_be_are_told(changed, words):
    with pytest.raises(OptionError) as caught:
        checked(OPTIONS._replace(**changed))
    assert words in str(caught.value)


def test_a_month_is_before_its_first_and_after_its_last_day():
    assert (given._DAY * 19723, OPTIONS._replace(old_before="2024-01").cutoff) == (1704067200, 1704067200)
    december = OPTIONS._replace(new_after="2023-12")
    assert december.birth == 1704067200 == OPTIONS._replace(new_after="2023-12-31").birth
