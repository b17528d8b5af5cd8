"""Forms: what rooms of one shape share, derived from an expression and the few facts that only the room knows.

A form hides nothing: what it derived for an op is printed by ``kernelworks map OP`` and told in docs/op-templates.md; a room
replaces a part by giving its own (``dataclasses.replace(FORM.contract, cost=...)``, a file of its own for a target).
"""
