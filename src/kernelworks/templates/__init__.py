"""Op templates: what ops of one shape share.

An op template derives it from an expression and the few facts that only the op package knows. It hides nothing:
``kernelworks map OP`` prints what was derived for an op, and docs/explanation/op-templates.md describes it. An op
package replaces a part by its own (``dataclasses.replace(TEMPLATE.contract, cost=...)``, a file of its own for a
target).
"""
