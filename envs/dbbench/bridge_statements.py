"""What whole statements of MySQL become: LIMIT in changes, types of columns, statements SQLite has no words for."""

from sqlglot import exp

from envs.dbbench.bridge_expressions import COLLATION, Node, call, text
from envs.dbbench.errors import not_supported

_NUMERIC = {
    **dict.fromkeys(("INT", "BIGINT", "SMALLINT", "TINYINT", "MEDIUMINT", "UINT", "UBIGINT", "BOOLEAN"), "INT"),
    **dict.fromkeys(("DOUBLE", "FLOAT"), "DOUBLE"),
    "DECIMAL": "DECIMAL",
}


def rewritten_statement(tree: Node) -> Node:
    """`tree` in the words of SQLite, but for its expressions. Raises StatementError for what has no equivalent."""
    while isinstance(tree, exp.Subquery) and not tree.args.get("limit") and not tree.args.get("order"):
        tree = tree.this
    for union in list(tree.find_all(exp.SetOperation)):
        for side in ("this", "expression"):
            union.set(side, _without_brackets(union.args[side]))
    for select in list(tree.find_all(exp.Select)):
        _without_dual(select)
        filtered = _filtered(select)
        if select is tree:
            tree = filtered
        elif filtered is not select:
            select.replace(filtered)
    if isinstance(tree, exp.Update | exp.Delete):
        return _limited(tree)
    if isinstance(tree, exp.Insert):
        return _inserted(tree)
    if isinstance(tree, exp.Create):
        return _created(tree)
    if isinstance(tree, exp.Drop):
        return _dropped(tree)
    if isinstance(tree, exp.TruncateTable):
        if len(tree.expressions) != 1:
            raise not_supported()
        return exp.Delete(this=tree.expressions[0])
    if isinstance(tree, exp.Alter):
        return _altered(tree)
    return tree


def _without_brackets(operand: Node) -> Node:
    """SQLite takes no brackets around the operands of a UNION."""
    if not isinstance(operand, exp.Subquery):
        return operand
    inner = operand.this
    if isinstance(inner, exp.Select) and not inner.args.get("order") and not inner.args.get("limit"):
        return inner
    operand.set("alias", exp.TableAlias(this=exp.to_identifier("operand")))
    return exp.Select(expressions=[exp.Star()]).from_(operand)


def _without_dual(select: Node) -> None:
    source = select.args.get("from_")
    if source is not None and isinstance(source.this, exp.Table) and source.this.name.upper() == "DUAL":
        select.set("from_", None)


def _filtered(select: Node) -> Node:
    """HAVING without groups and aggregates filters rows by what is selected; SQLite has no such thing."""
    having = select.args.get("having")
    if having is None or select.args.get("group") or any(select.find_all(exp.AggFunc)):
        return select
    outer = exp.Select(expressions=[exp.Star()])
    for clause in ("order", "limit", "offset"):
        outer.set(clause, select.args.get(clause))
    inner = select.copy()
    for clause in ("having", "order", "limit", "offset"):
        inner.set(clause, None)
    outer.set("where", exp.Where(this=having.this))
    return outer.from_(exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier("selected"))))


def store_as_texts(tree: Node) -> None:
    """What a change writes, as columns of texts take it: numbers as MySQL writes them. Its expressions are rewritten
    already."""
    if isinstance(tree, exp.Update):
        for assignment in tree.expressions:
            assignment.set("expression", _stored(assignment.expression))
    elif isinstance(tree, exp.Insert) and isinstance(tree.expression, exp.Values):
        for row in tree.expression.expressions:
            row.set("expressions", [_stored(value) for value in row.expressions])


def _stored(value: Node) -> Node:
    if isinstance(value, exp.Literal) and not value.is_string:
        return value if "e" in value.name.lower() else text(value.name)
    if isinstance(value, exp.Literal | exp.Null | exp.Column | exp.Boolean):
        return value
    return call("text", value)


def _limited(tree: Node) -> Node:
    """SQLite changes so many rows only by their ids."""
    table = tree.this
    if not isinstance(table, exp.Table) or table.args.get("joins") or tree.args.get("tables"):
        raise not_supported()
    if isinstance(tree, exp.Update):
        for assignment in tree.expressions:
            target = assignment.this
            if isinstance(target, exp.Column):
                target.set("table", None)
    limit, order = tree.args.get("limit"), tree.args.get("order")
    tree.set("order", None)
    if limit is None:
        return tree
    tree.set("limit", None)
    row_id = exp.column("rowid")
    chosen = exp.Select(expressions=[row_id]).from_(table.copy())
    chosen.set("where", tree.args.get("where"))
    chosen.set("order", order)
    chosen.set("limit", limit)
    tree.set("where", exp.Where(this=exp.In(this=row_id.copy(), query=exp.Subquery(this=chosen))))
    return tree


def _inserted(tree: exp.Insert) -> Node:
    # No published or generated table has a key, so there is never a duplicate.
    tree.set("conflict", None)
    tree.set("ignore", None)
    return tree


def _created(tree: exp.Create) -> Node:
    kind = (tree.args.get("kind") or "").upper()
    if kind not in ("TABLE", "VIEW"):
        raise not_supported()
    schema = tree.this
    tree.set("properties", None)
    if isinstance(schema, exp.Schema):
        definitions = [item for item in schema.expressions if isinstance(item, exp.ColumnDef)]
        for column in definitions:
            _define(column)
        schema.set("expressions", definitions)
    return tree


def _define(column: exp.ColumnDef) -> None:
    """Texts get the collation of MySQL. Keys are not enforced, but for the one that counts up by itself."""
    kind = column.args.get("kind")
    name = kind.this.name if kind is not None and isinstance(kind.this, exp.DataType.Type) else "TEXT"
    constraints = column.args.get("constraints") or []
    kept = [
        item for item in constraints if isinstance(item.kind, exp.NotNullColumnConstraint | exp.DefaultColumnConstraint)
    ]
    if any(isinstance(item.kind, exp.AutoIncrementColumnConstraint) for item in constraints):
        kept = [exp.ColumnConstraint(kind=exp.PrimaryKeyColumnConstraint())]
        column.set("kind", exp.DataType(this=exp.DataType.Type.INT))
    elif name not in _NUMERIC:
        column.set("kind", exp.DataType(this=exp.DataType.Type.TEXT))
        kept.append(exp.ColumnConstraint(kind=exp.CollateColumnConstraint(this=exp.to_identifier(COLLATION))))
    column.set("constraints", kept)


def _dropped(tree: exp.Drop) -> Node:
    if (tree.args.get("kind") or "").upper() not in ("TABLE", "VIEW") or len(tree.expressions) > 1:
        raise not_supported()
    tree.set("cascade", None)
    return tree


def _altered(tree: exp.Alter) -> Node:
    actions = tree.args.get("actions") or []
    if len(actions) != 1:
        raise not_supported()
    (action,) = actions
    if isinstance(action, exp.ColumnDef):
        _define(action)
        action.set("position", None)
    elif not isinstance(action, exp.Drop | exp.RenameColumn | exp.AlterRename):
        raise not_supported()
    return tree
