"""The sources' own searches, for comparison."""
