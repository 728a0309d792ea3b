"""What a sweep found, rendered: files to compute with, tables to print, figures, and a page."""
