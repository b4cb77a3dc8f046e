"""Statements of MySQL in the words of SQLite.

sqlglot parses a statement as MySQL does; the tree is rewritten where the two engines mean different things by the
same words, and written out for SQLite. Functions become calls of ours (`functions`), each under the prefix PREFIX, so
that none of SQLite's own can be reached by name. Only statements that are listed here are let through.
"""

import logging
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sqlglot import Token, TokenType, exp
from sqlglot.dialects import MySQL, SQLite
from sqlglot.errors import ErrorLevel, SqlglotError

from envs.dbbench.bridge_expressions import PREFIX, REWRITTEN, Node, call, rewritten
from envs.dbbench.bridge_functions import FUNCTIONS, NATIVE
from envs.dbbench.bridge_statements import rewritten_statement, store_as_texts
from envs.dbbench.errors import (
    StatementError,
    no_such_function,
    no_such_savepoint,
    no_such_table,
    not_supported,
    syntax_error,
)

# It reports statements that it does not know in detail there; they are answered here.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)

DATABASE = "dbbench"
SCHEMA = "information_schema"
# How SQLite's own tables are called.
_INTERNAL = ("sqlite_", "pragma_")
ONE_AT_A_TIME = "Error: one statement at a time."
# What is accepted and changes nothing.
_WITHOUT_EFFECT = (exp.Use, exp.Set)
_TRANSACTIONS = {exp.Transaction: "BEGIN", exp.Commit: "COMMIT", exp.Rollback: "ROLLBACK"}
_QUERIES = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)
# Those that commit what came before them.
_DEFINITIONS = (exp.Create, exp.Drop, exp.Alter, exp.TruncateTable)
_CHANGES = (exp.Insert, exp.Update, exp.Delete)

_MYSQL = MySQL()
_BEFORE_TABLES = (TokenType.FROM, TokenType.JOIN, TokenType.INTO, TokenType.UPDATE)
# Calls in which FROM stands before a text.
_CALLS_WITH_FROM = ("TRIM", "SUBSTRING", "SUBSTR", "EXTRACT")

_REPLACE = re.compile(r"\bREPLACE\b", re.IGNORECASE)
_CALLED = re.compile(rf"\b{PREFIX}\w+")

Kind = Literal["query", "change", "definition", "transaction", "show", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """sql: for SQLite; of a "show" it is empty, and `tree` says what is to be shown; of a "transaction" it is BEGIN,
    COMMIT or ROLLBACK.

    needs_schema: it reads the tables of `information_schema`. tables: the names of tables in it, as written.
    functions: a set that holds those of ours that it calls.
    """

    kind: Kind
    sql: str = ""
    tree: Node = None
    needs_schema: bool = False
    tables: frozenset[str] = frozenset()
    functions: frozenset[str] = frozenset()


class _Dialect(SQLite):  # type: ignore[misc]
    """SQLite, with names in backticks: what stands in double quotes, SQLite takes for a text if no column is
    called so, where MySQL says that there is no such column."""

    class Tokenizer(SQLite.Tokenizer):  # type: ignore[misc]
        IDENTIFIERS = ("`",)


@lru_cache(maxsize=2048)
def translate(statement: str) -> Translation:
    """Translate one statement. Raises StatementError, worded like MySQL's errors."""
    tree = _parsed(statement)
    if isinstance(tree, exp.Show) or (isinstance(tree, exp.Describe) and isinstance(tree.this, exp.Table)):
        return Translation(kind="show", tree=tree)
    if isinstance(tree, _WITHOUT_EFFECT) or (isinstance(tree, exp.Create) and tree.args.get("kind") == "INDEX"):
        return Translation(kind="nothing")
    if type(tree) in _TRANSACTIONS:
        if tree.args.get("savepoint") is not None:
            raise no_such_savepoint(tree.args["savepoint"].name)
        return Translation(kind="transaction", sql=_TRANSACTIONS[type(tree)])
    if isinstance(tree, exp.Condition | exp.Alias | exp.Tuple):
        raise syntax_error(statement)
    if not isinstance(tree, _QUERIES + _CHANGES + _DEFINITIONS):
        raise not_supported()
    kind: Kind = "query" if isinstance(tree, _QUERIES) else "definition"
    if isinstance(tree, _CHANGES):
        kind = "change"
    needs_schema, tables = _resolve_names(tree)
    tree = rewritten_statement(tree)
    _rewrite_expressions(tree)
    store_as_texts(tree)
    sql = _written(tree)
    return Translation(
        kind=kind,
        functions=frozenset(_CALLED.findall(sql)),
        sql=sql,
        needs_schema=needs_schema,
        tables=tables,
    )


def _written(tree: Node) -> str:
    try:
        written: str = tree.sql(
            dialect=_Dialect,
            copy=False,
            identify=True,
            comments=False,
            normalize_functions=False,
            unsupported_level=ErrorLevel.RAISE,
        )
        return written
    except (SqlglotError, RecursionError) as error:
        raise not_supported() from error


def _parsed(statement: str) -> Node:
    try:
        tokens = _MYSQL.tokenize(statement)
        _check_names(tokens)
        trees = [tree for tree in _MYSQL.parser().parse(tokens, statement) if tree is not None]
    except RecursionError as error:
        raise syntax_error("") from error
    except SqlglotError as error:
        details = getattr(error, "errors", None)
        raise syntax_error(str(details[0].get("highlight") or "") if details else "") from error
    trees = [tree for tree in trees if not isinstance(tree, exp.Semicolon)]
    if not trees:
        raise StatementError("1065 (42000): Query was empty")
    if len(trees) > 1:
        raise StatementError(ONE_AT_A_TIME)
    tree = trees[0]
    if isinstance(tree, exp.Command) and tree.name.upper() == "REPLACE":
        # There are no keys, so nothing is ever replaced.
        return _parsed(_REPLACE.sub("INSERT", statement, count=1))
    if isinstance(tree, exp.Select) and not tree.expressions:
        raise syntax_error("")
    return tree


def _check_names(tokens: list[Token]) -> None:
    """MySQL takes nothing in quotes for the name of a table; sqlglot does. Raises StatementError."""
    callers = []
    for position, token in enumerate(tokens[:-1]):
        if token.token_type is TokenType.L_PAREN:
            callers.append(tokens[position - 1].text.upper() if position else "")
        elif token.token_type is TokenType.R_PAREN and callers:
            callers.pop()
        elif token.token_type not in _BEFORE_TABLES or (callers and callers[-1] in _CALLS_WITH_FROM):
            continue
        elif tokens[position + 1].token_type is TokenType.STRING:
            raise syntax_error(tokens[position + 1].text)


def _resolve_names(tree: Node) -> tuple[bool, frozenset[str]]:
    """Strip the database's own name from names; tell whether any table is one of `information_schema`, and which
    others there are. Raises StatementError for a table of SQLite's own."""
    needs_schema, names = False, set()
    for node in list(tree.walk()):
        if isinstance(node, exp.Column) and node.args.get("db") is not None:
            node.set("db", None)
            node.set("catalog", None)
        if not isinstance(node, exp.Table):
            continue
        name = node.name
        if node.db.lower() == SCHEMA:
            needs_schema = True
            alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name, quoted=True))
            node.replace(exp.Table(this=exp.to_identifier(f"{SCHEMA}.{name.lower()}", quoted=True), alias=alias))
            continue
        if name.lower().startswith(_INTERNAL):
            raise no_such_table(name)
        names.add(name)
        node.set("db", None)
        node.set("catalog", None)
    return needs_schema, frozenset(names)


def _rewrite_expressions(tree: Node) -> None:
    """Children before parents, so that what a rewriting builds from is rewritten already."""
    for node in reversed(list(tree.walk(bfs=False))):
        replacement: Node = None
        kind = type(node)
        if kind in FUNCTIONS:
            replacement = FUNCTIONS[kind](node)
        elif kind in REWRITTEN:
            replacement = rewritten(node)
        elif kind is exp.Anonymous:
            replacement = call(node.name.lower(), *node.expressions)
        elif isinstance(node, exp.Func) and kind not in NATIVE:
            raise no_such_function(node.sql_name())
        if replacement is not None and replacement is not node:
            node.replace(replacement)
