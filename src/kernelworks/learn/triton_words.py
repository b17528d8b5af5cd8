"""What Python, Triton's interpreter and its compiler say of a kernel, in the words of somebody who learns."""

from __future__ import annotations

import re

__all__ = ["in_triton_words", "joined_masks"]

POINTERS = (
    "a kernel gets pointers: tl.load(x + offsets, mask=mask) reads a block, tl.store(y + offsets, values, mask=mask) "
    "writes one"
)
# What is said, what the line has, and what to do.
TABLE = (
    (r"object of type 'int' has no len", r"\w+\[", "the grid is a tuple, with its comma: kernel[(programs,)](...)"),
    (r"no attribute 'grid_idx'|outside of the scope of a kernel", "",
     "a kernel is launched with a grid: kernel[(programs,)](...)"),
    (r"'function' object is not subscriptable", r"\w+\[", "a kernel has @triton.jit in the line before its def"),
    (r"'int' object is not iterable", r"\b(max|min|sum)\(",
     "Python's own functions do not know blocks: tl.max(block, axis=0), tl.sum(block, axis=0)"),
    (r"'int' object is not iterable|only length-1 arrays", r"\w+\[", POINTERS),
    (r"range must be a power of 2", "",
     "a block is as long as a power of 2, such as triton.next_power_of_2(n), and a mask switches off the rest"),
    (r"arguments must be of type tl.constexpr", "",
     "a block's length is known when the kernel is compiled: a parameter BLOCK: tl.constexpr"),
    (r"must be Tensor, not tensor", r"\btorch\.", "torch's functions are for the CPU: in a kernel they are tl's"),
    (r"no attribute 'inf'", "", "infinity is float('inf')"),
    (r"operand type\(s\) for @", "", "a product of tiles is tl.dot(x, y, total)"),
    (r"pointer<\w+> and \S*float", r"(?<!/)/(?!/)", "an offset is an integer: // divides integers"),
    (r"make_shape_compatible|incompatible dimensions", "",
     "the shapes of two blocks do not fit: block[:, None] makes a column, block[None, :] a row, and axis=1 leaves a "
     "number for each row"),
    (r"axis \d out of bounds", "", "a block of one dimension has axis=0 alone"),
    (r"Mask argument cannot be block type", "",
     "one pointer is one number, and takes no mask of a block: offsets make a block of pointers"),
    (r"Value argument cannot be block type", "", "one pointer takes one number: tl.sum or tl.max makes one of a block"),
    (r"equal reduction dimensions", "", "x has as many columns as y has rows: tl.trans(tile) is the transpose"),
    (r"AssertionError: ?$", r"\btl\.dot\(", "the total has another type than the product: tl.float32"),
    (r"[Ll]oop-carried variable (\w+)", "", "what a loop adds to has the type of what is added before it begins: "
     "tl.zeros(..., dtype=tl.float32)"),
    (r"is not string", r"\bprint\(", 'a kernel prints with a text first: print("offsets", offsets)'),
    (r"is not defined", r"\bmath\.", "in a kernel functions of mathematics are tl's: tl.sqrt(x)"),
)  # fmt: skip


def in_triton_words(said: str, code: str) -> str:
    """What to do about an error's words ``said`` in the line ``code``; empty if it is in no table."""
    for pattern, line, words in TABLE:
        if re.search(pattern, said) and re.search(line, code):
            return words
    return ""


def joined_masks(code: str) -> str:
    """What is wrong with a line's mask that joins two conditions; empty if nothing is to be seen."""
    mask = re.search(r"\bmask\s*=\s*(.*)", code)
    if mask is None:
        return ""
    if re.search(r"\b(and|or)\b", mask[1]):
        return "`and` takes one of the two blocks: masks are joined by &, each in ( )"
    bare = re.sub(r"\[[^\]]*\]", "", mask[1])
    while "(" in bare and (shorter := re.sub(r"\([^()]*\)", "", bare)) != bare:
        bare = shorter
    if re.search(r"[<>]=?\s*\w+\s*&", bare):
        return "& binds before <: each condition of a mask stands in ( )"
    return ""
