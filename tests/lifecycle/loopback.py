"""A hub on this machine, as far as the client asks for one: repositories in memory, files by their content."""

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import yaml

TOKEN = "hf_good"
USER = "me"
LARGE = 20_000


class Repo:
    """A repository: its commits, each a whole table of files."""

    def __init__(self, private):
        self.private = private
        self.commits = [("0" * 40, {})]

    @property
    def head(self):
        return self.commits[-1][0]

    def at(self, revision):
        """The files of a revision, or None."""
        if revision == "main":
            return self.commits[-1][1]
        return dict(self.commits).get(revision)

    def commit(self, files):
        sha = hashlib.sha1(f"{len(self.commits)} {sorted(files)}".encode()).hexdigest()
        self.commits.append((sha, files))


class Hub(ThreadingHTTPServer):
    """The server; `blobs` are the large files that were sent, whoever committed them."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos, self.blobs = {}, {}
        self.asked, self.bodies = Counter(), []
        self.cut = False
        """Whether uploads of more than a few bytes are cut in the middle."""
        self.refuse = {}
        """A status for each path that begins so."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """A client that went away is no fault of the server's."""


def is_large(path):
    return path.endswith(".safetensors")


def oid_of(path, data):
    if is_large(path):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        """Nothing: what was asked is counted."""

    def reply(self, value, status=200, headers=None, *, body=True):
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, content in {"Content-Length": str(len(raw)), **(headers or {})}.items():
            self.send_header(name, content)
        self.end_headers()
        if body:
            self.wfile.write(raw)

    def fail(self, status, told, code=None):
        headers = {"X-Error-Message": told, **({"X-Error-Code": code} if code else {})}
        self.reply({"error": told}, status, headers, body=self.command != "HEAD")

    def answer(self):
        path = self.path.partition("?")[0]
        size = int(self.headers.get("Content-Length") or 0)
        if path.startswith("/lfs/") and self.server.cut and size > LARGE:
            self.rfile.read(size // 2)
            self.server.asked["cut"] += 1
            self.connection.close()
            return
        body = self.rfile.read(size)
        self.server.bodies.append(body)
        for method, pattern, serve in ROUTES:
            found = re.fullmatch(pattern, path)
            if found and self.command in method.split():
                self.server.asked[serve.__name__] += 1
                refused = next((s for start, s in self.server.refuse.items() if path.startswith(start)), None)
                if refused:
                    self.fail(refused, "refused, as the test has it")
                elif self.headers.get("Authorization") != f"Bearer {TOKEN}" and not path.startswith("/lfs/"):
                    self.fail(401, "Invalid credentials in Authorization header")
                else:
                    serve(self, body, **found.groupdict())
                return
        self.fail(404, f"no route {self.command} {path}")

    do_GET = do_POST = do_PUT = do_HEAD = answer  # noqa: N815 - as http.server calls them

    def repo_of(self, name):
        found = self.server.repos.get(name)
        if found is None:
            self.fail(404, "Repository not found", "RepoNotFound")
        return found

    # --- what is asked ----------------------------------------------------------------------------------------------

    def whoami(self, _body):
        self.reply({"type": "user", "name": USER, "auth": {"accessToken": {"role": "write"}}})

    def create(self, body):
        said = json.loads(body)
        owner = said["organization"] or USER
        name = f"{owner}/{said['name']}"
        if owner == "nobody":
            self.fail(404, "Namespace not found")
        elif owner != USER:
            self.fail(403, f"You don't have the rights to create a model under the namespace {owner!r}")
        elif name in self.server.repos:
            self.fail(409, "You already created this model repo")
        else:
            private = said.get("private", said.get("visibility") == "private")
            self.server.repos[name] = Repo(private)
            self.reply({"url": f"{self.server.url}/{name}", "name": name})

    def validate(self, body):
        head = json.loads(body)["content"].split("---\n")[1]
        said = yaml.safe_load(head)
        faults = [] if isinstance(said.get("tags"), list) and "library_name" in said else ["bad metadata"]
        self.reply({"errors": [{"message": fault} for fault in faults], "warnings": []}, 400 if faults else 200)

    def info(self, _body, repo, revision="main"):
        found = self.repo_of(repo)
        if found is None:
            return
        files = found.at(revision)
        if files is None:
            self.fail(404, "Revision not found", "RevisionNotFound")
            return
        sha = found.head if revision == "main" else revision
        said = {"_id": "1", "id": repo, "sha": sha, "private": found.private, "tags": [], "downloads": 0, "likes": 0}
        self.reply({**said, "siblings": [{"rfilename": name} for name in files]})

    def tree(self, _body, repo, revision):
        files = self.repo_of(repo).at(revision)
        told = []
        for name, data in files.items():
            entry = {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
            if is_large(name):
                entry["lfs"] = {"oid": oid_of(name, data), "size": len(data), "pointerSize": 100}
            told.append(entry)
        self.reply(told)

    def preupload(self, body, repo, revision):
        found = self.repo_of(repo)
        if found is None:
            return
        there = found.at(revision)
        self.reply(
            {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if is_large(file["path"]) else "regular",
                        "shouldIgnore": False,
                        "oid": oid_of(file["path"], there[file["path"]]) if file["path"] in there else None,
                    }
                    for file in json.loads(body)["files"]
                ]
            }
        )

    def batch(self, body, repo):
        told = []
        for each in json.loads(body)["objects"]:
            action = {"upload": {"href": f"{self.server.url}/lfs/{each['oid']}"}}
            told.append({**each, **({} if each["oid"] in self.server.blobs else {"actions": action})})
        self.reply({"transfer": "basic", "objects": told})

    def upload(self, body, oid):
        if hashlib.sha256(body).hexdigest() != oid:
            self.fail(400, "not what its name says")
            return
        self.server.blobs[oid] = body
        self.reply(b"")

    def commit(self, body, repo, revision):
        found = self.repo_of(repo)
        files = dict(found.at(revision))
        for line in body.splitlines():
            said = json.loads(line)
            value = said["value"]
            if said["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif said["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
            elif said["key"] == "deletedFile":
                del files[value["path"]]
        found.commit(files)
        where = f"{self.server.url}/{repo}/commit/{found.head}"
        self.reply({"commitUrl": where, "commitOid": found.head, "hookOutput": "", "success": True})

    def resolve(self, _body, repo, revision, path):
        found = self.repo_of(repo)
        files = None if found is None else found.at(revision)
        if files is None or path not in files:
            self.fail(404, "Entry not found", "EntryNotFound")
            return
        data = files[path]
        headers = {"ETag": f'"{oid_of(path, data)}"', "X-Repo-Commit": found.head if revision == "main" else revision}
        self.reply(data, 200, headers, body=self.command == "GET")


REPO = r"(?P<repo>[\w.-]+/[\w.-]+)"
ROUTES = [
    ("GET", r"/api/whoami-v2", Handler.whoami),
    ("POST", r"/api/repos/create", Handler.create),
    ("POST", r"/api/validate-yaml", Handler.validate),
    ("GET", rf"/api/models/{REPO}", Handler.info),
    ("GET", rf"/api/models/{REPO}/revision/(?P<revision>\w+)", Handler.info),
    ("GET", rf"/api/models/{REPO}/tree/(?P<revision>\w+)", Handler.tree),
    ("POST", rf"/api/models/{REPO}/preupload/(?P<revision>\w+)", Handler.preupload),
    ("POST", rf"/api/models/{REPO}/commit/(?P<revision>\w+)", Handler.commit),
    ("POST", rf"/{REPO}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", r"/lfs/(?P<oid>\w+)", Handler.upload),
    ("GET HEAD", rf"/{REPO}/resolve/(?P<revision>\w+)/(?P<path>.+)", Handler.resolve),
]


@contextmanager
def running():
    """A hub that listens."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


def connect(monkeypatch, url, home, token=TOKEN):
    """Have the client in this process ask that server, and know that token alone."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(hf_api.api, "endpoint", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_STORED_TOKENS_PATH", str(home / "tokens"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    if token is None:
        monkeypatch.delenv("HF_TOKEN", raising=False)
    else:
        monkeypatch.setenv("HF_TOKEN", token)
