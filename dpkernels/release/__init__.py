"""Release of values: input checks, exact engines, containers, and the estimated mean of reports."""
