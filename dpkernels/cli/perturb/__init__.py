"""``dpkernels perturb`` for one file: the release, its output and sidecar, and their verification."""
