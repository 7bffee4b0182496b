"""Studies: many runs under one plan. Planning, tuning, execution, statistics, tables and plots."""
