"""A report as one self-contained HTML page: text, tables and charts (matplotlib's, inlined as SVG), without scripts."""
