"""A stand-in of the hub: repositories in memory behind the HTTP interface of the hub."""

import base64
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

Files = dict[str, bytes]


@dataclass
class Repository:
    """The commits of a repository, the last one being `main`."""

    private: bool = False
    commits: dict[str, Files] = field(default_factory=dict)

    @property
    def head(self) -> str:
        return next(reversed(self.commits))

    def commit(self, files: Files) -> str:
        digest = hashlib.sha1(str(len(self.commits)).encode())
        for name in sorted(files):
            digest.update(name.encode() + files[name])
        self.commits[digest.hexdigest()] = files
        return digest.hexdigest()

    def find(self, revision: str) -> str | None:
        revision = self.head if revision == "main" else revision
        return revision if revision in self.commits else None


class Hub:
    """A server on a free port, while its `with` block runs."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[str] = []
        self.unknown: list[str] = []
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> "Hub":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def add(self, name: str, files: Files) -> str:
        """Add a commit to a repository and return its hash."""
        return self.repositories.setdefault(name, Repository()).commit(files)


class _Handler(BaseHTTPRequestHandler):
    server_hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._serve_file(with_body=False)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server_hub.requests.append(f"GET {path}")
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/(revision|tree)/([^/]+).*)?", path)
        if found is None:
            self._serve_file(with_body=True)
            return
        repository = self.server_hub.repositories.get(found[1])
        if repository is None:
            self._fail("RepoNotFound", "Repository not found")
            return
        commit = repository.find(found[3] or "main")
        if commit is None:
            self._fail("RevisionNotFound", f"Invalid rev id: {found[3]}")
            return
        files = repository.commits[commit]
        if found[2] == "tree":
            self._send([_describe(name, content) for name, content in files.items()])
        else:
            siblings = [{"rfilename": name} for name in files]
            self._send(
                {"id": found[1], "sha": commit, "siblings": siblings, "private": repository.private}
            )

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server_hub.requests.append(f"POST {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._validate(json.loads(body)["content"])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            files = json.loads(body)["files"]
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in files
            ]
            self._send({"files": modes})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            self._commit(found[1], [json.loads(line) for line in body.splitlines()])
        else:
            self.server_hub.unknown.append(f"POST {path}")
            self._fail("", f"unknown path {path}")

    def _create(self, request: dict[str, Any]) -> None:
        name = f"{request.get('organization') or 'me'}/{request['name']}"
        is_private = bool(request.get("private")) or request.get("visibility") == "private"
        if name in self.server_hub.repositories:
            self._send({"url": f"{self.server_hub.url}/{name}"}, status=409)
            return
        repository = self.server_hub.repositories.setdefault(name, Repository(is_private))
        repository.commit({})
        self._send({"url": f"{self.server_hub.url}/{name}"})

    def _validate(self, content: str) -> None:
        """Check what the hub requires of the metadata."""
        metadata = yaml.safe_load(content.split("---\n")[1])
        for model in metadata.get("model-index", []):
            assert model["name"]
            for result in model["results"]:
                assert result["task"]["type"]
                assert result["dataset"]["type"]
                assert result["dataset"]["name"]
                for metric in result["metrics"]:
                    assert metric["type"]
                    assert isinstance(metric["value"], float)
        self._send({"errors": [], "warnings": []})

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        repository = self.server_hub.repositories[name]
        files = dict(repository.commits[repository.head])
        for line in lines:
            if line["key"] == "file":
                value = line["value"]
                assert value["encoding"] == "base64"
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
            else:
                assert line["key"] == "header"
        commit = repository.commit(files)
        url = f"{self.server_hub.url}/{name}/commit/{commit}"
        self._send({"success": True, "commitOid": commit, "commitUrl": url, "hookOutput": ""})

    def _serve_file(self, *, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        repository = self.server_hub.repositories.get(found[1]) if found else None
        commit = repository.find(found[2]) if found and repository else None
        if found is None or repository is None or commit is None:
            self._fail("RepoNotFound", "not found")
            return
        content = repository.commits[commit].get(found[3])
        if content is None:
            self._fail("EntryNotFound", "Entry not found")
            return
        self.send_response(200)
        self.send_header("X-Repo-Commit", commit)
        self.send_header("ETag", f'"{_blob_id(content)}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def _send(self, value: object, status: int = 200) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _fail(self, code: str, message: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _describe(name: str, content: bytes) -> dict[str, Any]:
    return {"type": "file", "oid": _blob_id(content), "size": len(content), "path": name}
