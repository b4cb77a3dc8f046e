"""Which functions of MySQL are known, and which of ours each becomes."""

from collections.abc import Sequence

from sqlglot import exp

from envs.dbbench.bridge_expressions import Node, Rewriting, call, number, text

# What SQLite has under the same name and means the same by, and what is no call at all.
NATIVE: frozenset[type[exp.Expr]] = frozenset(
    (
        *(exp.And, exp.Or, exp.Case, exp.If, exp.Exists, exp.Coalesce, exp.Count, exp.Sum, exp.Avg),
        *(exp.Min, exp.Max, exp.Cast, exp.Xor, exp.GroupConcat, exp.Anonymous),
        *(exp.RowNumber, exp.Rank, exp.DenseRank, exp.PercentRank, exp.CumeDist, exp.Ntile),
        *(exp.Lag, exp.Lead, exp.FirstValue, exp.LastValue, exp.NthValue),
    )
)


def _arguments(node: Node, names: Sequence[str]) -> list[Node]:
    found: list[Node] = []
    for name in names:
        value = node.args.get(name)
        if isinstance(value, list):
            found += value
        elif value is not None:
            found.append(value)
    return found


def _as(name: str, *arguments: str) -> Rewriting:
    names = arguments or ("this",)
    return lambda node: call(name, *_arguments(node, names))


def _dated(node: Node, sign: int = 1) -> Node:
    amount = node.expression.this if isinstance(node.expression, exp.Interval) else node.expression
    unit = node.args.get("unit") or (
        node.expression.args.get("unit") if isinstance(node.expression, exp.Interval) else None
    )
    return call(
        "date_add", node.this, exp.Neg(this=number(amount)) if sign < 0 else amount, text(unit.name if unit else "DAY")
    )


def _trim(node: Node) -> Node:
    removed = node.args.get("expression") or text(" ")
    return call("trim", node.this, removed, text(str(node.args.get("position") or "BOTH").upper()))


def _length(node: Node) -> Node:
    return call("length" if node.args.get("binary") else "char_length", node.this)


def _any_of(name: str) -> Rewriting:
    """An aggregate of ours over numbers."""
    return lambda node: call(name, number(node.this))


def _log(node: Node) -> Node:
    base, value = (node.this, node.expression) if node.expression is not None else (None, node.this)
    return call("log", *([base] if base is not None else []), value)


FUNCTIONS: dict[type[exp.Expr], Rewriting] = {
    exp.Left: _as("left", "this", "expression"),
    exp.Right: _as("right", "this", "expression"),
    exp.SubstringIndex: _as("substring_index", "this", "delimiter", "count"),
    exp.StrPosition: _as("locate", "substr", "this", "position"),
    exp.Replace: _as("replace", "this", "expression", "replacement"),
    exp.Trim: _trim,
    exp.Length: _length,
    exp.Upper: _as("upper"),
    exp.Lower: _as("lower"),
    exp.Reverse: _as("reverse"),
    exp.Pad: lambda node: call(
        "lpad" if node.args.get("is_left") else "rpad", *_arguments(node, ("this", "expression", "fill_pattern"))
    ),
    exp.Repeat: _as("repeat", "this", "times"),
    exp.Space: lambda node: call("repeat", text(" "), node.this),
    exp.Concat: _as("concat", "expressions"),
    exp.ConcatWs: _as("concat_ws", "expressions"),
    exp.Substring: _as("substring", "this", "start", "length"),
    exp.Stuff: _as("insert", "this", "start", "length", "expression"),
    exp.Nullif: _as("nullif", "this", "expression"),
    exp.Greatest: _as("greatest", "this", "expressions"),
    exp.Least: _as("least", "this", "expressions"),
    exp.Elt: _as("elt", "this", "expressions"),
    exp.NumberToStr: _as("format", "this", "format"),
    exp.MD5: _as("md5"),
    exp.SHA: _as("sha1"),
    exp.SHA2: _as("sha2", "this", "length"),
    exp.Hex: _as("hex"),
    exp.Ascii: _as("ascii"),
    exp.Chr: _as("char", "expressions"),
    exp.RegexpLike: _as("regexp_like", "this", "expression", "flag"),
    exp.RegexpReplace: _as("regexp_replace", "this", "expression", "replacement"),
    exp.RegexpSubstr: _as("regexp_substr", "this", "expression"),
    exp.RegexpInstr: _as("regexp_instr", "this", "expression"),
    exp.Abs: _as("abs"),
    exp.Ceil: _as("ceil"),
    exp.Floor: _as("floor"),
    exp.Round: _as("round", "this", "decimals"),
    exp.Trunc: _as("truncate", "this", "decimals"),
    exp.Pow: _as("pow", "this", "expression"),
    exp.Sqrt: _as("sqrt"),
    exp.Sign: _as("sign"),
    exp.Exp: _as("exp"),
    exp.Ln: _as("log"),
    exp.Log: _log,
    exp.Pi: lambda node: call("pi"),
    exp.Rand: lambda node: call("rand"),
    exp.Uuid: lambda node: call("uuid"),
    exp.Year: _as("year"),
    exp.Month: _as("month"),
    exp.Day: _as("day"),
    exp.DayOfMonth: _as("day"),
    exp.DayOfWeek: _as("dayofweek"),
    exp.DayOfYear: _as("dayofyear"),
    exp.Dayname: _as("dayname"),
    exp.Quarter: _as("quarter"),
    exp.Hour: _as("hour"),
    exp.Minute: _as("minute"),
    exp.Second: _as("second"),
    exp.Date: _as("date"),
    exp.TsOrDsToDate: _as("date"),
    exp.TsOrDsToTimestamp: lambda node: node.this,
    exp.Time: _as("time"),
    exp.LastDay: _as("last_day"),
    exp.CurrentDate: lambda node: call("curdate"),
    exp.CurrentTime: lambda node: call("curtime"),
    exp.CurrentTimestamp: lambda node: call("now"),
    exp.DateDiff: _as("datediff", "this", "expression"),
    exp.TimestampDiff: lambda node: call("timestampdiff", text(node.args["unit"].name), node.expression, node.this),
    exp.DateAdd: _dated,
    exp.DateSub: lambda node: _dated(node, -1),
    exp.StrToDate: _as("str_to_date", "this", "format"),
    exp.TimeToStr: _as("date_format", "this", "format"),
    exp.Extract: lambda node: call(node.this.name.lower(), node.expression),
    exp.StddevPop: _any_of("stddev_pop"),
    exp.Stddev: _any_of("stddev_pop"),
    exp.StddevSamp: _any_of("stddev_samp"),
    exp.VariancePop: _any_of("var_pop"),
    exp.Variance: _any_of("var_samp"),
    exp.AnyValue: lambda node: exp.Max(this=node.this),
    exp.CurrentSchema: lambda node: text("dbbench"),
    exp.CurrentVersion: lambda node: text("8.0.36"),
}
