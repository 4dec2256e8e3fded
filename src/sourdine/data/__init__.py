"""Private tables: loaded and checked once, fingerprinted under a key, cut into words.

Nothing is imported here, so that `import sourdine.data` stays light: pyarrow loads with `tables`.
"""
