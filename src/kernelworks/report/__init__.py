"""Tables, plots and pages, made of records and of nothing else: this room knows no op and imports no torch.

| module | gives |
|---|---|
| ``quantity`` | numbers with their units, three figures, as text |
| ``terminal`` | the consoles: results on stdout, progress on stderr, plain text under ``NO_COLOR`` |
| ``diagnose`` ``machine`` ``prove`` ``bench`` ``map`` ``explain`` | one renderable for each verb's record |
| ``plot`` | roofline and memory pyramid as SVG that follows the page's colours |
| ``page`` | one self-contained HTML page for a diagnosis, one for a machine |
| ``readme`` | the generated parts of README.md |
"""
