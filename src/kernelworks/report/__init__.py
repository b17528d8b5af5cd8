"""Tables, plots and pages, made of records and of nothing else: this package knows no op and imports no torch.

| module | gives |
|---|---|
| ``quantity`` | numbers with their units, three figures, as text |
| ``terminal`` | the consoles: results on stdout, progress on stderr, plain text under ``NO_COLOR`` |
| ``diagnose`` ``machine`` ``verify`` ``bench`` ``map`` ``explain`` ``tune`` | one renderable for each verb's record |
| ``gpu`` | the same for a GPU's peaks |
| ``plot`` | roofline and memory hierarchy as SVG that follows the page's colours |
| ``page`` | one self-contained HTML page for a diagnosis, one for a machine |
"""
