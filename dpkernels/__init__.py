"""Bounded, unbiased differential-privacy noise in JAX, released by exact integer samplers.

``__init__.pyi`` lists the public names. Each is imported when it is first used, so that the command line answers
without starting JAX.
"""

import lazy_loader

__version__ = "0.3.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
