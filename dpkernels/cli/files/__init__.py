"""Files of values: formats, records and cells, and outputs that are either complete or absent."""
