"""Records and rows to what people look at. No torch."""
