"""A SPARQL endpoint over HTTP: answers, and everything that can go wrong on the way."""

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest
from pyoxigraph import Literal, NamedNode, Quad, QueryResultsFormat, Store

from agentrl_jax.env import Action
from agentrl_jax.errors import ConfigError, EnvError
from agentrl_jax.types import EpisodeEnd
from envs.kg_tools.calls import tool_call
from envs.kg_tools.desk import World
from envs.kg_tools.endpoint import Endpoint, find_endpoint
from envs.kg_tools.env import KnowledgeGraphToolsEnv
from envs.kg_tools.graph import QueryError
from envs.kg_tools.ontology import Ontology
from envs.kg_tools.problems import Problem
from envs.kg_tools.programs import Count, Entity, Join
from envs.kg_tools.sparql import NAMESPACE

STAFF = Join("employs", Entity("m.0x"))


def iri(name):
    return NamedNode(NAMESPACE + name)


class Server:
    """Answers from a small store, or as `behave` says; keeps what it was asked."""

    def __init__(self):
        store = Store()
        for object_ in ("m.0a", "m.0b"):
            store.add(Quad(iri("m.0x"), iri("employs"), iri(object_)))
        store.add(Quad(iri("m.0x"), iri("founded"), Literal("1990-08:00")))
        self.asked = []
        self.behave = None
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                fields = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                outer.asked.append({name: value for name, (value,) in fields.items()} | {"path": self.path})
                if outer.behave is not None:
                    outer.behave(self)
                    return
                query = fields["query"][0].replace("COUNT DISTINCT ?x", "(COUNT(DISTINCT ?x) AS ?n)")
                outer.reply(self, 200, store.query(query).serialize(format=QueryResultsFormat.JSON))

            def log_message(self, *arguments):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/sparql"

    @staticmethod
    def reply(handler, status, body):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.release.set()
    server.http.shutdown()
    server.http.server_close()
    thread.join()


def test_programs_are_answered_and_asked_once_a_session(server):
    session = Endpoint(url=server.url).session()
    assert session.answers(STAFF) == session.answers(STAFF) == {"m.0a", "m.0b"}
    assert session.relations(Entity("m.0x")) == {"employs", "founded"}
    assert session.answers(Count(STAFF)) == {"2"}
    assert [asked["path"] for asked in server.asked] == ["/sparql"] * 3
    Endpoint(url=server.url).session().answers(STAFF)
    assert len(server.asked) == 4


def test_the_virtuoso_dialect_is_spoken(server):
    endpoint = Endpoint(url=f"{server.url}?default-graph-uri=x", dialect="virtuoso", timeout_s=7.5)
    assert endpoint.session().answers(Join("founded", Entity("m.0x"))) == {"1990"}
    assert endpoint.session().answers(Count(STAFF)) == {"2"}
    assert "SELECT COUNT DISTINCT ?x" in server.asked[-1]["query"]
    assert (server.asked[-1]["timeout"], server.asked[-1]["path"]) == ("7500", "/sparql?default-graph-uri=x")
    assert Endpoint(url=server.url).session().answers(Join("founded", Entity("m.0x"))) == {"1990-08:00"}


def test_a_query_that_takes_too_long_is_the_policys_matter(server):
    server.behave = lambda handler: server.release.wait()
    with pytest.raises(QueryError, match="took too long"):
        Endpoint(url=server.url, timeout_s=0.05).ask("x")


def test_the_time_limit_holds_for_an_answer_that_drips(server):
    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        try:
            while not server.release.wait(0.01):
                handler.wfile.write(b" ")
                handler.wfile.flush()
        except OSError:
            pass

    server.behave = drip
    with pytest.raises(QueryError, match="took too long"):
        Endpoint(url=server.url, timeout_s=0.15).ask("x")


@pytest.mark.parametrize("status", [400, 500, 504])
def test_a_refused_query_is_the_policys_matter(server, status):
    server.behave = lambda handler: server.reply(handler, status, b"Virtuoso 42000 Error")
    with pytest.raises(QueryError, match="was refused"):
        Endpoint(url=server.url).ask("x")


@pytest.mark.parametrize("status", [502, 503])
def test_an_endpoint_that_is_out_of_order_is_not(server, status):
    server.behave = lambda handler: server.reply(handler, status, b"")
    with pytest.raises(EnvError, match=f"out of order: status {status}"):
        Endpoint(url=server.url).ask("x")


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b'{"results": {"bindings": [3]}}', b"\xff"])
def test_an_answer_that_is_none_is_the_endpoints_fault(server, body):
    server.behave = lambda handler: server.reply(handler, 200, body)
    with pytest.raises(EnvError, match="gave no results in JSON"):
        Endpoint(url=server.url).ask("x")


def test_an_answer_that_is_too_long_is_cut_off(server, monkeypatch):
    monkeypatch.setattr("envs.kg_tools.endpoint.MAX_ANSWER_BYTES", 100)
    server.behave = lambda handler: server.reply(handler, 200, b" " * 101)
    with pytest.raises(QueryError, match="too many answers"):
        Endpoint(url=server.url).ask("x")


def test_no_endpoint_is_the_endpoints_fault():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(EnvError, match="does not answer"):
            Endpoint(url=f"http://127.0.0.1:{taken.getsockname()[1]}/", timeout_s=5).ask("x")


def test_a_connection_that_breaks_is_the_endpoints_fault(server):
    server.behave = lambda handler: handler.connection.close()
    with pytest.raises(EnvError, match="does not answer"):
        Endpoint(url=server.url, timeout_s=5).ask("x")


def test_an_episode_goes_on_after_a_slow_query(server):
    ontology = Ontology(
        relations=frozenset(("employs",)), attributes=frozenset(), domains={}, ranges={}, by_domain={}, reverses={}
    )
    problem = Problem(
        question="who?",
        world=World(ontology=ontology, entities={"X": "m.0x"}, relations=ontology.relations, attributes=frozenset()),
        gold=STAFF,
        answers=frozenset(("m.0a", "m.0b")),
        backend=Endpoint(url=server.url, timeout_s=5).session,
    )
    env = KnowledgeGraphToolsEnv(problem)
    env.reset()
    server.behave = lambda handler: server.reply(handler, 500, b"")
    calls = (tool_call("get_relations", "X"), tool_call("get_neighbors", "X", "employs"))
    (message,) = env.step(Action(calls=calls[:1])).messages
    assert message.content == "Error processing tool call: get_relations: the query was refused"
    server.behave = None
    env.step(Action(calls=calls))
    assert env.step(Action(content="Final Answer: #0")).reward == 1.0
    again = KnowledgeGraphToolsEnv(problem)
    again.reset()
    again.step(Action(calls=calls))
    server.behave = lambda handler: server.reply(handler, 500, b"")
    assert again.step(Action(content="Final Answer: #0")).end is EpisodeEnd.VALIDATION_FAILED


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "ftp://x"}, "must be http:// or https:// with a host"),
        ({"url": "x"}, "must be http:// or https:// with a host"),
        ({"url": "http://x:99999/"}, "must be http:// or https:// with a host"),
        ({"url": "http://x:port/"}, "must be http:// or https:// with a host"),
        ({"url": 7}, "must be http:// or https:// with a host"),
        ({"url": "http://x", "dialect": "mysql"}, "must be standard or virtuoso"),
        ({"url": "http://x", "timeout_s": 0}, "must be > 0"),
        ({"url": "http://x", "user": "y"}, "expected url, dialect and timeout_s"),
        ({}, "expected url, dialect and timeout_s"),
    ],
)
def test_a_folder_names_an_endpoint(tmp_path, fields, message):
    assert find_endpoint(tmp_path) is None
    (tmp_path / "endpoint.json").write_text(json.dumps(fields))
    with pytest.raises(ConfigError, match=message):
        find_endpoint(tmp_path)
    (tmp_path / "endpoint.json").write_text('{"url": "https://x/y", "dialect": "virtuoso"}')
    assert find_endpoint(tmp_path) == Endpoint(url="https://x/y", dialect="virtuoso", timeout_s=60.0)
