"""Local mechanisms for a value that is one of d categories."""
