"""Reports of records and rows: tables, figures, HTML. No torch."""
