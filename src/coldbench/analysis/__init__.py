"""From records to figures: the tidy table, the statistics, the verdicts."""
