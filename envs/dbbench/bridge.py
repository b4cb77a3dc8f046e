"""Statements of MySQL in the words of SQLite.

sqlglot parses a statement as MySQL does; the tree is rewritten where the two engines mean different things by the
same words, and written out for SQLite. Functions become calls of ours (`functions`), each under the prefix PREFIX, so
that none of SQLite's own can be reached by name. Only statements that are listed here are let through.
"""

import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from sqlglot import Token, TokenType, exp
from sqlglot.dialects import MySQL, SQLite
from sqlglot.errors import ErrorLevel, SqlglotError

from envs.dbbench.bridge_expressions import REWRITTEN, Node, call, rewritten
from envs.dbbench.bridge_functions import FUNCTIONS, NATIVE
from envs.dbbench.bridge_statements import rewritten_statement, store_as_texts
from envs.dbbench.errors import StatementError, no_such_function, not_supported, syntax_error

# It reports statements that it does not know in detail there; they are answered here.
logging.getLogger("sqlglot").setLevel(logging.CRITICAL)

DATABASE = "dbbench"
SCHEMA = "information_schema"
ONE_AT_A_TIME = "Error: one statement at a time."
# What is accepted and changes nothing: every statement is committed by itself.
_WITHOUT_EFFECT = (exp.Use, exp.Set, exp.Transaction, exp.Commit, exp.Rollback)
_QUERIES = (exp.Select, exp.SetOperation, exp.Subquery, exp.Values)
_CHANGES = (exp.Insert, exp.Update, exp.Delete, exp.Create, exp.Drop, exp.Alter, exp.TruncateTable)

_MYSQL = MySQL()
_BEFORE_TABLES = (TokenType.FROM, TokenType.JOIN, TokenType.INTO, TokenType.UPDATE)
# Calls in which FROM stands before a text.
_CALLS_WITH_FROM = ("TRIM", "SUBSTRING", "SUBSTR", "EXTRACT")

Kind = Literal["query", "change", "show", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """sql: for SQLite; of a "show" it is empty, and `tree` says what is to be shown.

    needs_schema: it reads the tables of `information_schema`. tables: the names of tables in it, as written.
    """

    kind: Kind
    sql: str = ""
    tree: Node = None
    needs_schema: bool = False
    tables: frozenset[str] = frozenset()


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
    if isinstance(tree, _WITHOUT_EFFECT):
        return Translation(kind="nothing")
    if not isinstance(tree, _QUERIES + _CHANGES):
        raise not_supported()
    needs_schema = _resolve_tables(tree)
    tables = frozenset(table.name for table in tree.find_all(exp.Table))
    tree = rewritten_statement(tree)
    _rewrite_expressions(tree)
    store_as_texts(tree)
    kind: Kind = "query" if isinstance(tree, _QUERIES) else "change"
    return Translation(kind=kind, sql=_written(tree), needs_schema=needs_schema, tables=tables)


def _written(tree: Node) -> str:
    try:
        written: str = tree.sql(
            dialect=_Dialect,
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


def _resolve_tables(tree: Node) -> bool:
    """Strip the database's own name from table names; tell whether any table is one of `information_schema`."""
    needs_schema = False
    for table in list(tree.find_all(exp.Table)):
        name = table.name
        if table.db.lower() == SCHEMA:
            needs_schema = True
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name, quoted=True))
            table.replace(exp.Table(this=exp.to_identifier(f"{SCHEMA}.{name.lower()}", quoted=True), alias=alias))
        elif table.db:
            table.set("db", None)
            table.set("catalog", None)
    for column in tree.find_all(exp.Column):
        if column.args.get("db") is not None:
            column.set("db", None)
            column.set("catalog", None)
    return needs_schema


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
