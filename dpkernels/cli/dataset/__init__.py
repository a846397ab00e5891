"""Datasets of many files: planned, released in parts by an engine, and averaged."""
