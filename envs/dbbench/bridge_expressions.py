"""How operators, casts and aggregates of MySQL are written for SQLite.

MySQL compares two texts by their collation, and anything else as numbers; a text in arithmetic counts as the number
it starts with. SQLite does neither for columns of texts. Where the operands may not both be texts, comparing is left
to the function `compare`, which sees the values.
"""

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from envs.dbbench.errors import StatementError, not_supported, syntax_error

PREFIX = "my_"
COLLATION = "mysql"
# SQLite allows 127 arguments of a function; one is what is looked for.
_MAX_LISTED = 100

Node = Any
"""A node of a tree: sqlglot types them too loosely to say more."""
Rewriting = Callable[[Node], Node]
# Nodes and calls of ours whose value is a number already.
_NUMBERS = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Count, exp.Sum, exp.Avg)
_NUMERIC_CALLS = frozenset(
    PREFIX + name
    for name in ("number", "int", "decimal", "divide", "mod", "int_divide", "length", "char_length", "locate")
)


def call(name: str, *arguments: Node) -> exp.Anonymous:
    """A call of our function `name`."""
    return exp.Anonymous(this=PREFIX + name, expressions=list(arguments))


def text(value: str) -> exp.Literal:
    return exp.Literal.string(value)


def number(node: Node) -> Node:
    """`node` as a number: the one its text starts with."""
    inner = node.unnest()
    if isinstance(inner, exp.Literal) and not inner.is_string:
        return node
    if isinstance(inner, exp.Anonymous):
        return node if inner.name in _NUMERIC_CALLS else call("number", node)
    return node if isinstance(inner, _NUMBERS) else call("number", node)


def rewritten(node: Node) -> Node:
    """What stands for `node`, one of REWRITTEN, in SQLite. Its children are rewritten already."""
    return REWRITTEN[type(node)](node)


def _comparison(node: Node) -> Node:
    if isinstance(node.parent, exp.Update) and node.arg_key == "expressions":
        return node  # an assignment
    left, right = node.left, node.right
    if _is_native(left, right):
        return node
    return type(node)(this=call("compare", left, right), expression=exp.Literal.number(0))


def _is_native(left: Node, right: Node) -> bool:
    """Whether SQLite compares as MySQL does: a column of texts with a text, or by an explicit collation."""
    if isinstance(left, exp.Collate) or isinstance(right, exp.Collate):
        return True
    if isinstance(left, exp.Tuple) or isinstance(right, exp.Tuple):
        return True
    if isinstance(left, exp.Literal):
        left, right = right, left
    return isinstance(right, exp.Literal) and right.is_string and isinstance(left, exp.Column) and _is_stored(left)


def _is_stored(column: exp.Column) -> bool:
    """Whether it is certainly a column of a table, and not of a subquery, or an alias."""
    if column.find_ancestor(exp.Having):
        return False
    scope = column.find_ancestor(exp.Select, exp.Update, exp.Delete)
    if not isinstance(scope, exp.Select):
        return scope is not None
    if scope.root().args.get("with_") is not None:
        return False
    sources = [scope.args.get("from_"), *(scope.args.get("joins") or ())]
    return all(source is not None and isinstance(source.this, exp.Table) for source in sources)


def _arithmetic(node: Node) -> Node:
    left, right = node.left, node.right
    for one, other in ((left, right), (right, left)):
        if isinstance(one, exp.Interval):
            amount = exp.Neg(this=number(one.this)) if isinstance(node, exp.Sub) else one.this
            return call("date_add", other, amount, text(one.text("unit")))
    return type(node)(this=number(left), expression=number(right))


def _division(name: str) -> Rewriting:
    return lambda node: call(name, node.left, node.right)


def _in(node: Node) -> Node:
    listed = node.expressions
    if not listed or isinstance(node.this, exp.Tuple | exp.Collate):
        return node
    if all(_is_native(node.this, value) for value in listed):
        return node
    chunks = [listed[start : start + _MAX_LISTED] for start in range(0, len(listed), _MAX_LISTED)]
    parts: list[Node] = [call("in_list", node.this.copy(), *chunk) for chunk in chunks]
    return parts[0] if len(parts) == 1 else exp.Paren(this=exp.or_(*parts, wrap=False))


def _between(node: Node) -> Node:
    above = exp.GTE(this=call("compare", node.this, node.args["low"]), expression=exp.Literal.number(0))
    below = exp.LTE(this=call("compare", node.this.copy(), node.args["high"]), expression=exp.Literal.number(0))
    return exp.Paren(this=exp.And(this=above, expression=below))


def _case(node: Node) -> Node:
    base = node.this
    if base is None:
        return node
    branches = []
    for branch in node.args["ifs"]:
        is_same = exp.EQ(this=call("compare", base.copy(), branch.this), expression=exp.Literal.number(0))
        branches.append(exp.If(this=is_same, true=branch.args["true"]))
    return exp.Case(ifs=branches, default=node.args.get("default"))


def _like(node: Node) -> Node:
    matches = call("like", node.this, node.expression)
    return exp.Not(this=matches) if node.args.get("negate") else matches


def _escape(node: Node) -> Node:
    matches = node.this.find(exp.Anonymous)
    if matches is None:
        raise syntax_error("ESCAPE")
    matches.append("expressions", node.expression)
    return node.this


def _xor(node: Node) -> Node:
    return call("xor", node.left, node.right)


def _cast(node: Node) -> Node:
    """Each type by a function of ours; a type that MySQL cannot cast to is an error."""
    kind = node.args["to"]
    name = kind.this.name if isinstance(kind.this, exp.DataType.Type) else str(kind.this).upper()
    if name in _INTEGERS:
        return call("int", node.this)
    if name == "DECIMAL":
        decimals = kind.expressions[1].this if len(kind.expressions) > 1 else exp.Literal.number(0)
        return call("decimal", node.this, decimals.copy())
    if name in ("BINARY", "VARBINARY"):
        return exp.Collate(this=node.this, expression=exp.to_identifier("BINARY"))
    function = _CASTS.get(name) or ("text" if name.startswith("CHAR") else None)
    if function is None:
        raise not_supported()
    return call(function, node.this)


_INTEGERS = frozenset(("BIGINT", "UBIGINT", "INT", "UINT", "SMALLINT", "TINYINT", "MEDIUMINT"))
_CASTS = {
    **dict.fromkeys(("TEXT", "CHAR", "VARCHAR", "NCHAR", "NVARCHAR", "CHARACTER_SET"), "text"),
    **dict.fromkeys(("DOUBLE", "FLOAT"), "number"),
    **dict.fromkeys(("DATETIME", "TIMESTAMP", "TIMESTAMPTZ"), "datetime"),
    **{"DATE": "date", "TIME": "time", "YEAR": "year"},
}


def _collate(node: Node) -> Node:
    is_binary = node.expression.name.lower().endswith(("_bin", "binary"))
    return exp.Collate(this=node.this, expression=exp.to_identifier("BINARY" if is_binary else COLLATION))


def _total(node: Node) -> Node:
    """SUM and AVG of the numbers that the texts start with."""
    argument = node.this
    if isinstance(argument, exp.Distinct):
        argument.set("expressions", [number(item) for item in argument.expressions])
    else:
        node.set("this", number(argument))
    return node


def _count(node: Node) -> Node:
    argument = node.this
    if isinstance(argument, exp.Distinct) and len(argument.expressions) > 1:
        argument.set("expressions", [call("row_key", *argument.expressions)])
    return node


def _group_concat(node: Node) -> Node:
    """`group_concat(flags, separator, value, keys…)`: flags say whether values are distinct and how keys are sorted."""
    value, keys = node.this, []
    if isinstance(value, exp.Order):
        keys, value = value.expressions, value.this
    flags = "".join("D" if key.args.get("desc") else "A" for key in keys)
    if isinstance(value, exp.Distinct):
        flags, value = f"U{flags}", exp.Tuple(expressions=value.expressions)
    if isinstance(value, exp.Tuple):
        value = value.expressions[0] if len(value.expressions) == 1 else call("concat", *value.expressions)
    separator = node.args.get("separator") or text(",")
    return call("group_concat", text(flags), separator, value, *(key.this for key in keys))


def _refused(node: Node) -> Node:
    raise StatementError("1193 (HY000): Unknown system variable")


def _unexpected(node: Node) -> Node:
    raise syntax_error("?")


def _negated(node: Node) -> Node:
    return exp.Neg(this=number(node.this))


REWRITTEN: dict[type[exp.Expr], Rewriting] = {
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE), _comparison),
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul), _arithmetic),
    exp.Div: _division("divide"),
    exp.IntDiv: _division("int_divide"),
    exp.Mod: _division("mod"),
    exp.NullSafeEQ: lambda node: call("null_safe_equal", node.left, node.right),
    exp.Neg: _negated,
    exp.In: _in,
    exp.Between: _between,
    exp.Case: _case,
    exp.Like: _like,
    exp.Escape: _escape,
    exp.Xor: _xor,
    exp.Cast: _cast,
    exp.Collate: _collate,
    **dict.fromkeys((exp.Sum, exp.Avg), _total),
    exp.Count: _count,
    exp.GroupConcat: _group_concat,
    **dict.fromkeys((exp.Parameter, exp.SessionParameter), _refused),
    exp.Placeholder: _unexpected,
}
