"""Op templates: what op packages of one shape share, derived from an expression and the few facts that only the op
package knows.

An op template hides nothing: what it derived for an op is printed by ``kernelworks map OP`` and told in
docs/op-templates.md; an op package replaces a part by giving its own (``dataclasses.replace(TEMPLATE.contract,
cost=...)``, a file of its own for a target).
"""
