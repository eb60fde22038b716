"""The hub: sent to, and fetched from, by its own client. Whatever becomes of that is told in words.

An update is one commit: a repository never holds a part of one. Large files are sent before they are committed, and the
hub knows them by their content; so a second call, after one that broke off, sends what was not sent yet, and commits.
That is `create_commit`. (`upload_folder` commits in parts where hf_xet is there, and `upload_large_folder` always did.)
"""
# ruff: noqa: PLC0415 - the client takes half a second to import

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from srt_peft.errors import HubError, OptionError, SRTError
from srt_peft.lifecycle import pushed

_OWN = (pushed.ABOUT, pushed.REVIEW, "adapter_config.json", "config.json", "generation_config.json")
_PUSH, _NOTHING = "push", "Nothing was sent"
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt")


@dataclass(frozen=True)
class Place:
    """A repository, as the hub has it now."""

    repo: str
    there: bool
    private: bool
    files: tuple[str, ...]


def named(repo: str, what: str) -> tuple[str, str | None]:
    """The name, and the revision where one is said: `hub:ORG/NAME@REVISION`, or without `hub:`."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    name, _, revision = repo.removeprefix("hub:").partition("@")
    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if name.count("/") != 1:
        raise OptionError(what, [f"REPO = {repo!r}: expected the name of a repository on the hub, as in me/my-adapter"])
    return name, revision or None


def check_token() -> None:
    """Refuse before anything is made or sent where there is no token."""
    from huggingface_hub import get_token

    if get_token() is None:
        fault = "no token of the hub is here: expected one that may write. Log in with `hf auth login`, or set HF_TOKEN"
        raise OptionError(_PUSH, [fault])


def look(repo: str) -> Place:
    """What is there now; nothing, as far as this token can see, or a repository."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    with _asking(repo):
        HfApi().whoami()
        try:
            found = HfApi().model_info(repo)
        except RepositoryNotFoundError:
            return Place(repo, there=False, private=True, files=())
    names = tuple(sibling.rfilename for sibling in found.siblings or ())
    return Place(repo, there=True, private=bool(found.private), files=names)


def check_base(place: Place, about: Mapping[str, Any], scratch: Path) -> None:
    """Refuse a repository that holds an update of another base, or weights of nobody knows which."""
    base = about["base"]
    with _asking(place.repo):
        theirs = _base_there(place, scratch)
    if theirs is None and not any(name.endswith(_WEIGHTS) for name in place.files):
        return
    name, weights = theirs or ("", None)
    if name == base["name"] and weights in (None, base["weights"]):
        return
    what = "weights, and does not say of which base they are" if theirs is None else f"an update of {name!r}"
    if name == base["name"]:
        what = f"an update of {name!r} with other weights ({weights}; here {base['weights']})"
    raise OptionError(
        _PUSH,
        [f"REPO = {place.repo} holds {what}: expected one of {base['name']!r}, or none yet. Name another. {_NOTHING}"],
    )


def _base_there(place: Place, scratch: Path) -> tuple[str, str | None] | None:
    """The base that a repository names, and its weights where it is one of ours."""
    import json

    from huggingface_hub import ModelCard, hf_hub_download

    def fetched(name: str) -> Path:
        return Path(hf_hub_download(place.repo, name, local_dir=scratch))

    if pushed.ABOUT in place.files:
        fetched(pushed.ABOUT)
        base = pushed.read_about(scratch)["base"]
        return base["name"], base["weights"]
    if "adapter_config.json" in place.files:
        said = json.loads(fetched("adapter_config.json").read_text(encoding="utf-8"))
        return str(said.get("base_model_name_or_path")), None
    if pushed.CARD in place.files:
        card = ModelCard.load(fetched(pushed.CARD))
        if card.data.base_model:
            return str(card.data.base_model), None
    return None


def send(folder: Path, place: Place, *, private: bool, message: str) -> str:
    """Make the repository if it is not there, and commit the folder to it; the address of what was committed."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    paths = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    gone = [name for name in place.files if name not in paths and _is_ours(name)]
    with _asking(place.repo):
        if not place.there:
            api.create_repo(place.repo, private=private, exist_ok=True)
        operations: list[Any] = [CommitOperationAdd(name, path) for name, path in paths.items()]
        operations += [CommitOperationDelete(name) for name in gone]
        return str(api.create_commit(place.repo, operations, commit_message=message).commit_url)


def _is_ours(name: str) -> bool:
    """Whether an earlier push may have put it there: what it was is not there any more."""
    folders = (f"{pushed.STATE}/", f"{pushed.PICTURES}/")
    return name in _OWN or name.startswith(folders) or ("/" not in name and name.endswith(".safetensors"))


# --- fetching -------------------------------------------------------------------------------------------------------


def resolve(repo: str, revision: str | None) -> tuple[str, tuple[str, ...]]:
    """The commit that a revision is now, and its files."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    with _asking(repo):
        try:
            found = HfApi().model_info(repo, revision=revision)
        except RevisionNotFoundError:
            raise OptionError(
                "next", [f"hub:{repo} has no revision {revision!r}: expected a commit, or a tag"]
            ) from None
        except RepositoryNotFoundError:
            raise HubError(
                f"hub:{repo} is not there, or is private and this token may not read it. Check the name; log in with "
                "`hf auth login`, or set HF_TOKEN."
            ) from None
    return str(found.sha), tuple(sibling.rfilename for sibling in found.siblings or ())


def fetch(repo: str, commit: str, names: list[str], folder: Path) -> None:
    """Fetch these files of a commit; what an interrupted call has fetched is not fetched again."""
    from huggingface_hub import snapshot_download

    with _asking(repo):
        snapshot_download(repo, revision=commit, local_dir=folder, allow_patterns=names)


# --- what becomes of it ---------------------------------------------------------------------------------------------

_STATUS = {
    401: "The hub does not accept the token (401): expected one that is valid. Log in again with `hf auth login`, or "
    "set HF_TOKEN.",
    403: "The token has no right to {repo} (403): expected one that may write there. Give it that right, or name a "
    "repository of your own.",
    404: "The hub knows no such place as {repo} (404): expected a user or an organisation that is there, and that you "
    "are in. Check the name.",
    409: "{repo} was changed by somebody else meanwhile (409). Look at it, and try again.",
    413: "The hub finds it too large (413) for {repo}.",
    429: "The hub asks to wait (429): try again later. What was sent is there.",
}


@contextmanager
def _asking(repo: str) -> Iterator[None]:
    """Turn whatever goes wrong between here and the hub into words."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except SRTError:
        raise
    except Exception as error:
        chain = list(_causes(error))
        answer = next((each for each in chain if isinstance(each, HfHubHTTPError)), None)
        full = next((each for each in chain if isinstance(each, OSError) and each.errno == errno.ENOSPC), None)
        if answer is not None and answer.response is not None:
            status = answer.response.status_code
            said = str(answer.server_message or answer).strip().splitlines() or [""]
            told = _STATUS.get(status, "The hub answers {status} for {repo}: try again later. What was sent is there.")
            raise HubError(f"{told.format(repo=repo, status=status)} It says: {said[0][:200]}") from error
        if full is not None:
            raise
        if any(_is_of_the_line(each) for each in chain):
            raise HubError(
                f"The connection to {constants.ENDPOINT} failed or broke off ({_line(chain[-1])}). Nothing was "
                f"committed to {repo} or changed here. Check the network, and call again: what was sent or "
                "fetched whole is not sent or fetched again."
            ) from error
        raise HubError(f"The hub's client has failed for {repo}: {_line(error)} ({_line(chain[-1])})") from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__ or found.__context__


def _is_of_the_line(error: BaseException) -> bool:
    """Whether it is of a connection: each HTTP library has errors of its own."""
    library = type(error).__module__.partition(".")[0]
    return isinstance(error, (ConnectionError, TimeoutError)) or library.startswith(("httpx", "httpcore", "requests"))


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
