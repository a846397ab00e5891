"""From values to reports: checked inputs, the engines that draw exactly, containers, and estimates of reports."""
