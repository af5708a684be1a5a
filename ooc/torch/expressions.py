"""Expressions of sizes in programs of torch.export: PyTorch has Python evaluate them."""

from __future__ import annotations

import ast
import re

LONGEST, LARGEST = 1 << 13, 1 << 63
MOST_POWER = 64  # of all exponents, multiplied
WORD = re.compile(r"[\w.+-]*")  # of a text in it: a symbol's name, a number's digits, a tensor's name
NUMBERS = "Integer Rational Float One Zero NegativeOne Half Infinity Symbol Tuple Identity"
ARITHMETIC = "Mul Add Pow Max Min Mod Abs floor ceiling sqrt max min abs int float bool round"
LOGIC = """Eq Ne Lt Le Gt Ge And Or Not Xor Where Piecewise ExprCondPair Equality Unequality StrictLessThan LessThan
    StrictGreaterThan GreaterThan IsNonOverlappingAndDenseIndicator"""
TORCH = """FloorDiv ModularIndexing PythonMod CleanDiv CeilToInt FloorToInt CeilDiv PowByNatural FloatTrueDiv IntTrueDiv
    TruncToFloat TruncToInt RoundToInt RoundDecimal ToFloat"""
CALLS = frozenset(f"{NUMBERS} {ARITHMETIC} {LOGIC} {TORCH}".split())
OF_TENSORS = ("size", "stride", "storage_offset", "shape", "ndim", "dim", "numel", "inf", "nan", "isnan", "sqrt")
ATTRIBUTES = frozenset((*OF_TENSORS, *(f"sym_{what}" for what in ("max", "min", "not", "int", "float", "ite"))))
NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.Call, ast.keyword,
    ast.Attribute, ast.Subscript, ast.Tuple, ast.IfExp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop,
)  # fmt: skip


def check_expression(text: str, most: int = LARGEST) -> None:
    """Raise ValueError or SyntaxError where a text is more than arithmetic of sizes, or takes long. most: of all numbers in it,
    those of symbols too."""
    if len(text) > LONGEST or any(int(digits) > most for digits in re.findall(r"[0-9]+", text)):
        raise ValueError("a long expression")
    power = 1
    for node in ast.walk(ast.parse(text, mode="eval")):
        if not isinstance(node, NODES) or not _plain(node):
            raise ValueError(f"{ast.unparse(node)[:60]!r} is not arithmetic of sizes")
        power *= _power(node)
        if power > MOST_POWER:
            raise ValueError("large powers")


def _plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Name):
        return not node.id.startswith("_")
    if isinstance(node, ast.Attribute):
        return node.attr in ATTRIBUTES
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) or (isinstance(node.func, ast.Name) and node.func.id in CALLS)
    if isinstance(node, ast.Constant):
        value = node.value
        return WORD.fullmatch(value) is not None if isinstance(value, str) else isinstance(value, bool | int | float | None)
    return not isinstance(node, ast.LShift | ast.MatMult)


def _power(node: ast.AST) -> int:
    """What an exponent comes to; of one that is not in the text: more than may be."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        exponent = node.right
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and "Pow" in node.func.id and len(node.args) == 2:
        exponent = node.args[1]
    else:
        return 1
    while isinstance(exponent, ast.UnaryOp):
        exponent = exponent.operand
    if isinstance(exponent, ast.Call) and len(exponent.args) in (1, 2):  # Integer(2), Rational(1, 2)
        exponent = exponent.args[0]
    while isinstance(exponent, ast.UnaryOp):
        exponent = exponent.operand
    known = isinstance(exponent, ast.Constant) and isinstance(exponent.value, int)
    return max(1, abs(int(exponent.value))) if known and isinstance(exponent, ast.Constant) else MOST_POWER + 1  # type: ignore[arg-type]
