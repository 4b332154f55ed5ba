"""From records to numbers and tables: selection, medians, rows beside the paper's."""
