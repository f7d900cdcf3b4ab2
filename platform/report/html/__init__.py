"""A report as one self-contained HTML page: text, tables and charts (matplotlib, inlined as SVG), no script."""
