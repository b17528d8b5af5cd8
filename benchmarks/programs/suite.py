"""All programs of the suite in one file: ``kernelworks diagnose benchmarks/programs/suite.py:encoder --fix``.

A program is a function without arguments that does its whole work once. ``PAIRS`` names for each the cached function
whose result begins with the model: what a user would hand to ``torch.compile``. ``FILES`` says where each stands.
"""

from __future__ import annotations

import diffusion
import language
import loops
import recommender
import recurrent
import ridge
import speech
import training
import vision

MODULES = (language, training, vision, diffusion, speech, recurrent, recommender, ridge, loops)
PAIRS = {name: getter for module in MODULES for name, getter in module.PAIRS.items()}
FILES = {name: f"{module.__name__}.py" for module in MODULES for name in module.PAIRS}

for module in MODULES:
    globals().update({name: getattr(module, name) for pair in module.PAIRS.items() for name in pair})
