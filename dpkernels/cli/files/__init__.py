"""Files of values: formats, records and cells, and outputs that are whole or not there."""
