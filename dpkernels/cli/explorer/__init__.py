"""The page of ``dpkernels explore``: its tables, what it is built of, and the command's work."""
