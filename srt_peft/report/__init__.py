"""What became of a run, or of a contest between schedulers, on a page that a person can read offline.

read     a run's folder -> the numbers behind its pictures
contest  a comparison of schedulers -> its planes and tables
charts   these numbers -> pictures, each with a sentence on how to read it and a table
still    a few of these numbers -> small SVGs, for a model card
page     pictures, tables and texts -> one self-contained report.html
"""
