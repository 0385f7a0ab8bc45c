"""What all experiments share: settings, seeds and runs, rows, findings, tables, files, charts."""
