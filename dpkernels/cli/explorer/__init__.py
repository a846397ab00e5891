"""The page of ``dpkernels explore``: its parts, and the tables that they look up."""
