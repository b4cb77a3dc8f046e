"""Any SPARQL endpoint that holds Freebase, over HTTP. Sessions run on threads, so a query may block its own.

A folder `knowledgegraph` with a file `endpoint.json` names one: {"url": …, "dialect": "virtuoso", "timeout_s": 60}.
"""

import json
import time
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode, urlsplit

from agentrl_jax.errors import ConfigError, EnvError
from envs.kg_tools.graph import QueryError
from envs.kg_tools.ontology import read_json
from envs.kg_tools.programs import Program
from envs.kg_tools.sparql import Dialect, answers_query, plain_value, relations_query

ENDPOINT_FILE = "endpoint.json"
# An answer that is longer is refused: no question needs it.
MAX_ANSWER_BYTES = 64 << 20
_READ_BYTES = 1 << 16
# The endpoint itself is out of order.
_DOWN = (502, 503)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """url: where queries are posted. timeout_s: of one query, from the first byte sent to the last one received."""

    url: str
    dialect: Dialect = "standard"
    timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if not _is_web_address(self.url):
            raise ConfigError(f"an endpoint's url must be http:// or https:// with a host, got {self.url!r}")
        if self.dialect not in get_args(Dialect):
            raise ConfigError(f"an endpoint's dialect must be {' or '.join(get_args(Dialect))}, got {self.dialect!r}")
        if not self.timeout_s > 0:
            raise ConfigError(f"an endpoint's timeout_s must be > 0, got {self.timeout_s}")

    def session(self) -> "EndpointSession":
        return EndpointSession(self)

    def ask(self, query: str) -> frozenset[str]:
        """The values of a query's one column. Raises QueryError for a query that takes too long or is refused, and
        EnvError if the endpoint cannot be reached or answers with something else."""
        connection = self._connect()
        try:
            status, body = self._post(connection, query)
        except TimeoutError as error:
            raise QueryError("the query took too long") from error
        except (OSError, HTTPException) as error:
            raise EnvError(f"the SPARQL endpoint {self.url} does not answer: {error!r}") from error
        finally:
            connection.close()
        if status in _DOWN:
            raise EnvError(f"the SPARQL endpoint {self.url} is out of order: status {status}")
        if status != 200:
            raise QueryError("the query was refused")
        return self._values(body)

    def _connect(self) -> HTTPConnection:
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return connection(parts.hostname, parts.port, timeout=self.timeout_s)

    def _post(self, connection: HTTPConnection, query: str) -> tuple[int, bytes]:
        deadline = time.monotonic() + self.timeout_s
        fields = {"query": query}
        if self.dialect == "virtuoso":
            fields["timeout"] = str(int(self.timeout_s * 1000))
        headers = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/sparql-results+json",
        }
        parts = urlsplit(self.url)
        target = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        connection.request("POST", target, urlencode(fields, errors="replace"), headers)
        # The response takes the socket over where the server closes the connection.
        socket = connection.sock
        socket.settimeout(max(deadline - time.monotonic(), 0.001))
        response = connection.getresponse()
        with response:
            return response.status, self._read(response, socket, deadline)

    @staticmethod
    def _read(response: HTTPResponse, socket: Any, deadline: float) -> bytes:
        body = bytearray()
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            if not response.isclosed():
                socket.settimeout(left_s)
            part = response.read1(_READ_BYTES)
            if not part:
                return bytes(body)
            body += part
            if len(body) > MAX_ANSWER_BYTES:
                raise QueryError("the query has too many answers")

    def _values(self, body: bytes) -> frozenset[str]:
        try:
            bindings = json.loads(body)["results"]["bindings"]
            values = [cell["value"] for binding in bindings for cell in binding.values()]
            return frozenset(plain_value(value, self.dialect) for value in values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EnvError(f"the SPARQL endpoint {self.url} gave no results in JSON: {error!r}") from error


def _is_web_address(url: object) -> bool:
    try:
        parts = urlsplit(url) if isinstance(url, str) else None
        # A port that is none shows only where it is read.
        return parts is not None and parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


class EndpointSession:
    """Implements `Backend` for one episode: no query is asked twice."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._asked: dict[str, frozenset[str]] = {}

    def answers(self, program: Program) -> frozenset[str]:
        return self._ask(answers_query(program, self._endpoint.dialect))

    def relations(self, program: Program) -> frozenset[str]:
        return self._ask(relations_query(program))

    def _ask(self, query: str) -> frozenset[str]:
        if query not in self._asked:
            self._asked[query] = self._endpoint.ask(query)
        return self._asked[query]


def find_endpoint(folder: Path) -> Endpoint | None:
    """The endpoint that a folder names, None if it names none. Raises ConfigError for a file that is no endpoint."""
    if not (folder / ENDPOINT_FILE).is_file():
        return None
    fields = read_json(folder, ENDPOINT_FILE)
    try:
        return Endpoint(**fields)
    except TypeError as error:
        raise ConfigError(f"{folder / ENDPOINT_FILE}: expected url, dialect and timeout_s, but {error}") from error
